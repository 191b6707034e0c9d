"""MLflow: one MLflow run across all requeues, in the store at MLFLOW_TRACKING_URI or in mlruns/ next to the runs."""

import os
import re
from collections.abc import Mapping

from mlflow.entities import Metric, Param, RunTag
from mlflow.tracking import MlflowClient

from noether.config.section import flat
from noether.runs.tracking.services import RunFacts

LONGEST_PARAMETER = 500
"""Longest value of a parameter in characters; MLflow refuses more than 6,000, and nobody reads more than a line."""
ENTRIES_AT_ONCE = 100
"""Number of parameters or tags in one call, which MLflow limits."""
STATUS = {"done": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}


class MlflowService:
    """Service that logs through MLflow's client, which has no global state."""

    def open(self, facts: RunFacts) -> str:
        """Create the MLflow run, or resume it by its id."""
        uri = os.environ.get("MLFLOW_TRACKING_URI") or (facts.folder.resolve().parent / "mlruns").as_uri()
        if uri.startswith("file:") or ":" not in uri:  # A folder, given as a URL or a path.
            # Recent versions of MLflow write to a folder only if this is set. Nodes have no MLflow server.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        self._client = MlflowClient(uri)
        self._shown: dict[str, int] = {}
        self._goes_on = facts.session is not None
        if facts.session is not None:
            self._run = facts.session
            self._client.update_run(self._run, status="RUNNING")
        else:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "noether")
            experiment = self._client.get_experiment_by_name(name)
            where = experiment.experiment_id if experiment else self._client.create_experiment(name)
            self._run = str(self._client.create_run(where, run_name=facts.run_id).info.run_id)
        asked = {key: str(value)[:LONGEST_PARAMETER] for key, value in flat(facts.settings) if value != {}}
        known = self._client.get_run(self._run).data
        # MLflow parameters cannot change, so a changed setting of a resumed run becomes a tag of the same name.
        shown = {**known.params, **known.tags}
        tags = [RunTag(key, value) for key, value in asked.items() if shown.get(key, value) != value]
        tags.append(RunTag("noether.folder", str(facts.folder)))
        params = [Param(key, value) for key, value in asked.items() if key not in known.params]
        for at in range(0, max(len(params), len(tags)), ENTRIES_AT_ONCE):
            here = slice(at, at + ENTRIES_AT_ONCE)
            self._client.log_batch(self._run, params=params[here], tags=tags[here])
        return self._run

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Log the metrics of an update; skip any that an earlier attempt has logged for this or a later update."""
        # MLflow allows letters, digits and _-./ : in a name, and refuses the whole call if one name is wrong.
        named = {re.sub(r"[^/\w.\- :]", "_", re.sub(r"[()]", "", name)): value for name, value in numbers.items()}
        new = [Metric(name, value, 0, update) for name, value in named.items() if update > self._last_shown(name)]
        if new:
            self._client.log_batch(self._run, new)

    def _last_shown(self, name: str) -> int:
        """Return the last update at which an earlier attempt logged this metric; -1 if there is none."""
        if self._goes_on and name not in self._shown:
            history = self._client.get_metric_history(self._run, name)
            self._shown[name] = max((metric.step for metric in history), default=-1)
        return self._shown.get(name, -1)

    def close(self, ended: str) -> None:
        """Set the run's final status; leave it unchanged if a newer attempt has taken over the run."""
        if ended in STATUS:
            self._client.set_terminated(self._run, STATUS[ended])

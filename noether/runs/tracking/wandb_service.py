"""Weights & Biases: one W&B run across all requeues. Use WANDB_MODE=offline on nodes without a network."""

import os
from collections.abc import Mapping

import wandb

from noether.runs.tracking.services import RunFacts
from noether.runs.tracking.tracker import group_name


class WandbService:
    """Service that logs to wandb. Environment variables (WANDB_PROJECT, …) set project, entity, mode and so on."""

    def open(self, facts: RunFacts) -> str:
        """Create the W&B run, or resume it by its id; `wandb sync` joins the parts of an offline run."""
        self._run = wandb.init(
            dir=str(facts.folder),
            id=facts.session,
            name=facts.run_id,
            project=os.environ.get("WANDB_PROJECT", "noether"),
            config=dict(facts.settings),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        # `init` sets the config of a new run only; a resumed run keeps its old settings.
        if facts.session is not None:
            self._run.config.update(dict(facts.settings), allow_val_change=True)  # type: ignore[no-untyped-call]
        # A resumed run may repeat updates that a killed attempt has logged; wandb's own step would refuse them.
        self._run.define_metric("*", step_metric="update")
        best = {"lower": "min", "higher": "max"}
        for metric in facts.described.values():  # Make the table of runs show the best evaluation, not the last.
            for weights in facts.weights if metric.better else ():
                name = f"{group_name('validation', weights)}/{metric.name}"
                self._run.define_metric(name, step_metric="update", summary=best[metric.better])
        return str(self._run.id)

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Log the metrics of an update."""
        self._run.log({**numbers, "update": update})

    def close(self, ended: str) -> None:
        """Mark the run as finished or failed, or as preempted if it may be resumed."""
        if ended in ("stopped", "lost"):
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if ended == "done" else 1)

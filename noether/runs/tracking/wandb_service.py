"""Weights & Biases: one run through every requeue. WANDB_MODE=offline is for nodes without a network."""

import os
from collections.abc import Mapping

import wandb

from noether.runs.tracking.services import RunFacts
from noether.runs.tracking.tracker import group_name


class WandbService:
    """Logs to wandb. Project, entity, mode and the like are wandb's own environment variables (WANDB_PROJECT, …)."""

    def open(self, facts: RunFacts) -> str:
        """Begins the run, or goes on with it under its id; offline parts are joined by `wandb sync`."""
        self._run = wandb.init(
            dir=str(facts.folder),
            id=facts.session,
            name=facts.run_id,
            project=os.environ.get("WANDB_PROJECT", "noether"),
            config=dict(facts.settings),
            resume="allow",
            settings=wandb.Settings(console="off", silent=True),
        )
        # What is given to `init` counts for a run that begins; of one that goes on, the settings of before stay.
        if facts.session is not None:
            self._run.config.update(dict(facts.settings), allow_val_change=True)  # type: ignore[no-untyped-call]
        # Rows after a resume may repeat updates that a killed start had logged: wandb's own step would refuse them.
        self._run.define_metric("*", step_metric="update")
        best = {"lower": "min", "higher": "max"}
        for metric in facts.described.values():  # The table of runs shows the best evaluation, not the last.
            for weights in facts.weights if metric.better else ():
                name = f"{group_name('validation', weights)}/{metric.name}"
                self._run.define_metric(name, step_metric="update", summary=best[metric.better])
        return str(self._run.id)

    def log(self, numbers: Mapping[str, float], update: int) -> None:
        """Logs the numbers over updates."""
        self._run.log({**numbers, "update": update})

    def close(self, ended: str) -> None:
        """Mark the part as finished, failed, or, where the run goes on later, preempted."""
        if ended in ("stopped", "lost"):
            self._run.mark_preempting()
        self._run.finish(exit_code=0 if ended == "done" else 1)

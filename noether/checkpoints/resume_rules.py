"""Which settings may change when a run is resumed, and why: one table, and functions that apply it. No torch here."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from noether.common.errors import RequestError
from noether.config.schema import RunConfig
from noether.config.section import flat
from noether.runs.resuming import continue_line


class ResumeRule(Enum):
    """What a changed setting means for a resumed run."""

    FREE = "changes nothing that is learned"
    SAID = "changes what is learned, as the user clearly intends; the run continues and prints the change"
    REFUSED = "makes it a different run; refused unless accept_changes names the key"


# The entry of the setting decides, else that of the nearest section above it.
RULES = {
    "accelerator": (ResumeRule.SAID, "other devices round differently; the order of samples continues"),
    "devices": (ResumeRule.FREE, "another number of ranks goes on with the same order of samples"),
    "master_port": (ResumeRule.FREE, "where the ranks meet"),
    "nodes": (ResumeRule.FREE, "where the ranks run"),
    "node_rank": (ResumeRule.FREE, "where the ranks run"),
    "master_addr": (ResumeRule.FREE, "where the ranks meet"),
    "distributed": (ResumeRule.FREE, "how long ranks wait for each other"),
    "dataset_root": (ResumeRule.FREE, "where the same data lies"),
    "output_path": (ResumeRule.FREE, "where the run lies"),
    "run_id": (ResumeRule.FREE, "where the run lies"),
    "resume": (ResumeRule.FREE, "how it goes on"),
    "accept_changes": (ResumeRule.FREE, "how it goes on"),
    "initial_weights": (ResumeRule.FREE, "where it began; it goes on from its own weights"),
    "num_workers": (ResumeRule.FREE, "who reads the data"),
    "tracker": (ResumeRule.FREE, "what is shown"),
    "slurm": (ResumeRule.FREE, "what a job asks for"),
    "trainer.max_epochs": (ResumeRule.SAID, "a schedule that spans the run is stretched from here on"),
    "trainer.max_updates": (ResumeRule.SAID, "a schedule that spans the run is stretched from here on"),
    "trainer.max_samples": (ResumeRule.SAID, "a schedule that spans the run is stretched from here on"),
    "trainer.max_batch_size": (ResumeRule.FREE, "accumulation learns the same, to rounding"),
    "trainer.log_every": (ResumeRule.FREE, "what is shown"),
    "trainer.evaluate_every": (ResumeRule.SAID, "the weights are selected among other updates from here on"),
    "trainer.checkpoint_every": (ResumeRule.FREE, "what is kept"),
    "trainer.select_by": (ResumeRule.REFUSED, "values of two metrics do not compare"),
    "trainer.stop_after": (ResumeRule.SAID, "the run ends earlier or later"),
    "trainer.callbacks": (ResumeRule.SAID, "other code is called from here on"),
    "trainer.keep_checkpoints": (ResumeRule.FREE, "what is kept"),
    "trainer.evaluation_batch_size": (ResumeRule.FREE, "each sample is scored alone"),
    "trainer.evaluation_chunk_size": (ResumeRule.FREE, "a prediction does not depend on its chunk"),
    "trainer.timeout_min": (ResumeRule.FREE, "when it stops"),
    "trainer.freeze": (ResumeRule.REFUSED, "the optimiser has no state of other parameters"),
    "trainer.nan_policy": (ResumeRule.FREE, "what happens at numbers that are not finite"),
    "trainer.max_skipped_updates": (ResumeRule.FREE, "what happens at numbers that are not finite"),
    "trainer.profile": (ResumeRule.FREE, "what is shown"),
    "trainer.compile": (ResumeRule.SAID, "a compiled model rounds differently"),
    "trainer.tf32": (ResumeRule.SAID, "matrix products on a GPU are rounded differently"),
    "trainer.recompute": (ResumeRule.FREE, "the gradients are the same bit for bit"),
    "trainer.deterministic": (ResumeRule.SAID, "other algorithms round differently"),
    "trainer.clip_gradient_norm": (ResumeRule.SAID, "updates are clipped differently from here on"),
    "optimizer.kind": (ResumeRule.REFUSED, "another optimiser does not know what this one has gathered"),
    "optimizer": (ResumeRule.SAID, "updates are made differently from here on"),
    "schedule": (ResumeRule.SAID, "the learning rate follows another curve from here on"),
    "seed": (ResumeRule.REFUSED, "the order of samples and every random number would be another run's"),
    "trainer.effective_batch_size": (ResumeRule.REFUSED, "the position in the order of samples is counted in batches"),
    "trainer.precision": (ResumeRule.REFUSED, "weights and gradients would be other numbers"),
    "trainer.ema_decay": (ResumeRule.REFUSED, "EMA weights of two decays do not compare, and cannot begin late"),
    "dataset": (ResumeRule.REFUSED, "other samples: metrics before and after would not compare"),
    "model": (ResumeRule.REFUSED, "another model cannot take these weights, or means something else by them"),
    "task.scalars": (ResumeRule.SAID, "other numbers are derived from the fields; what is learned is the same"),
    "task": (ResumeRule.REFUSED, "another loss and other statistics"),
}
SAME_SIZES = ("model.supernodes", "model.radius", "model.max_neighbours", "model.dropout")
"""Settings of models that change no weight's size; weights of another size cannot be taken, accepted or not."""
UNLISTED = (ResumeRule.REFUSED, "nothing is known of what this setting changes")


@dataclass(frozen=True)
class Change:
    """One setting that differs between the run that is resumed and what is asked now."""

    key: str
    before: Any
    now: Any
    rule: ResumeRule
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} → {_shown(self.now)}"


def compare_configs(before: Mapping[str, Any], now: RunConfig) -> list[Change]:
    """Returns the settings that differ, in the order of the schema.

    What `before`, stored with the checkpoint, lacks, an older version did not know, and counts as the default.
    """
    with suppress(ValidationError, RequestError):  # Of a version with other settings: compared as it stands.
        before = RunConfig.model_validate(before).model_dump(mode="json")
    old, new = dict(flat(before)), dict(flat(now.model_dump(mode="json")))
    keys = [*new, *(key for key in old if key not in new)]
    return [Change(key, old.get(key), new.get(key), *rule_of(key)) for key in keys if old.get(key) != new.get(key)]


def rule_of(key: str) -> tuple[ResumeRule, str]:
    """Returns what a changed setting means, and why."""
    while key and key not in RULES:
        key = key.rpartition(".")[0]
    return RULES.get(key, UNLISTED)


def is_accepted(key: str, accept: Sequence[str]) -> bool:
    """Whether `accept_changes` lets a setting change: by its name, by that of a section above it, or by "all"."""
    return any(word == "all" or key == word or key.startswith(f"{word}.") for word in accept)


def accepted_changes(changes: Sequence[Change], accept: Sequence[str], run: str) -> list[str]:
    """Returns a line for each change that the user should know of.

    `accept`: keys or sections that the user has accepted; "all" is every key. RequestError: names every change that is
    refused, why, and the line that accepts it.
    """
    refused = [one for one in changes if one.rule is ResumeRule.REFUSED and not is_accepted(one.key, accept)]
    if refused:
        widest = max(len(str(change)) for change in refused)
        # What was accepted before stays accepted. Data are accepted as a whole: any setting of them makes others.
        proposed = ("dataset" if change.key.startswith("dataset.") else change.key for change in refused)
        keys = ",".join(dict.fromkeys([*accept, *proposed]))
        other = f"'accept_changes=[{keys}]'      (or resume=null run_id=ANOTHER_NAME for a run of its own)"
        if any(_changes_sizes(change.key) for change in refused):
            other = "resume=null run_id=ANOTHER_NAME      (a run of its own: these weights have other sizes)"
        raise RequestError(
            "settings-changed",
            f"the run {run} has other settings",
            seen="\n".join(f"{change!s:<{widest}}   {change.reason}" for change in refused),
            expected="the settings of the resumed run, or accept_changes if the change is intended",
            fix=f"{continue_line(Path(run))}      (the run's own settings)\n" + other,
        )
    return [f"{change}: {change.reason}" for change in changes if change.rule is not ResumeRule.FREE]


def _changes_sizes(key: str) -> bool:
    """Whether a setting may change how many weights there are, or what they mean."""
    outputs = key in ("task.classes", "task.kind") or key.startswith("task.fields")
    return outputs or (key.startswith("model.") and key not in SAME_SIZES)


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."

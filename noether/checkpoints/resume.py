"""Decides from which checkpoint a run resumes, and in which folder. No torch here."""

import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from noether.checkpoints.format import (
    META,
    CheckpointFolder,
    DamagedCheckpoint,
    Warn,
    list_checkpoints,
    newest_intact,
    no_intact_checkpoint,
    recover_replaced,
)
from noether.checkpoints.named import named_checkpoint
from noether.common.atomic_write import DISK_ERRNOS, ELSEWHERE, refusals_told
from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.schema import RunConfig
from noether.config.section import flat
from noether.config.sweep import override_value
from noether.runs.continue_line import continue_line
from noether.runs.folder import (
    REPLACED,
    RunFolder,
    checkpoint_paths,
    existing_run,
    is_run,
    named_run,
    new_run_id,
    newest_run,
)
from noether.runs.lease import Lease, attempts_so_far, read_attempt
from noether.runs.records import read_metrics


class ResumeRule(Enum):
    """What a changed setting means for a resumed run."""

    ALLOWED = "changes nothing that is learned"
    ANNOUNCED = "changes what is learned, as the user clearly intends; the run continues and prints the change"
    REFUSED = "makes it a different run; refused unless accept_changes names the key"


# The entry of the setting decides, else that of the nearest section above it.
RULES = {
    "accelerator": (ResumeRule.ANNOUNCED, "other devices round differently; the order of samples continues"),
    "devices": (ResumeRule.ALLOWED, "another number of ranks goes on with the same order of samples"),
    **dict.fromkeys(("master_port", "master_addr"), (ResumeRule.ALLOWED, "where the ranks meet")),
    **dict.fromkeys(("nodes", "node_rank"), (ResumeRule.ALLOWED, "where the ranks run")),
    "distributed": (ResumeRule.ALLOWED, "how long ranks wait for each other"),
    "dataset_root": (ResumeRule.ALLOWED, "where the same data lies"),
    **dict.fromkeys(("output_path", "run_id"), (ResumeRule.ALLOWED, "where the run lies")),
    **dict.fromkeys(("resume", "accept_changes"), (ResumeRule.ALLOWED, "how it goes on")),
    "initial_weights": (ResumeRule.ALLOWED, "where it began; it goes on from its own weights"),
    "num_workers": (ResumeRule.ALLOWED, "who reads the data"),
    **dict.fromkeys(("tracker", "trainer.log_every", "trainer.profile"), (ResumeRule.ALLOWED, "what is shown")),
    "slurm": (ResumeRule.ALLOWED, "what a job asks for"),
    "trainer.max_epochs": (ResumeRule.ANNOUNCED, "a schedule that spans the run is stretched from here on"),
    "trainer.max_updates": (ResumeRule.ANNOUNCED, "a schedule that spans the run is stretched from here on"),
    "trainer.max_samples": (ResumeRule.ANNOUNCED, "a schedule that spans the run is stretched from here on"),
    "trainer.max_batch_size": (ResumeRule.ALLOWED, "accumulation learns the same, to rounding"),
    "trainer.across_ranks": (ResumeRule.REFUSED, "samples are compared with others in the loss"),
    "trainer.evaluate_every": (ResumeRule.ANNOUNCED, "the weights are selected among other updates from here on"),
    **dict.fromkeys(("trainer.checkpoint_every", "trainer.keep_checkpoints"), (ResumeRule.ALLOWED, "what is kept")),
    "trainer.select_by": (ResumeRule.REFUSED, "values of two metrics do not compare"),
    "trainer.stop_after": (ResumeRule.ANNOUNCED, "the run ends earlier or later"),
    "trainer.callbacks": (ResumeRule.ANNOUNCED, "other code is called from here on"),
    "trainer.evaluation_batch_size": (ResumeRule.ANNOUNCED, "only a loss that compares samples changes"),
    "trainer.evaluation_chunk_size": (ResumeRule.ALLOWED, "a prediction does not depend on its chunk"),
    "trainer.timeout_min": (ResumeRule.ALLOWED, "when it stops"),
    "trainer.freeze": (ResumeRule.REFUSED, "the optimiser has no state of other parameters"),
    "trainer.nan_policy": (ResumeRule.ALLOWED, "what happens at numbers that are not finite"),
    "trainer.max_skipped_updates": (ResumeRule.ALLOWED, "what happens at numbers that are not finite"),
    "trainer.compile": (ResumeRule.ANNOUNCED, "a compiled model rounds differently"),
    "trainer.tf32": (ResumeRule.ANNOUNCED, "matrix products on a GPU are rounded differently"),
    "trainer.recompute": (ResumeRule.ALLOWED, "the gradients are the same bit for bit"),
    "trainer.deterministic": (ResumeRule.ANNOUNCED, "other algorithms round differently"),
    "trainer.clip_gradient_norm": (ResumeRule.ANNOUNCED, "updates are clipped differently from here on"),
    "trainer.clip_gradient_value": (ResumeRule.ANNOUNCED, "updates are clipped differently from here on"),
    "optimizer.kind": (ResumeRule.REFUSED, "another optimiser does not know what this one has gathered"),
    "optimizer": (ResumeRule.ANNOUNCED, "updates are made differently from here on"),
    "schedule": (ResumeRule.ANNOUNCED, "the learning rate follows another curve from here on"),
    "seed": (ResumeRule.REFUSED, "the order of samples and every random number would be another run's"),
    "trainer.effective_batch_size": (ResumeRule.REFUSED, "the position in the order of samples is counted in batches"),
    "trainer.precision": (ResumeRule.REFUSED, "weights and gradients would be other numbers"),
    "trainer.ema_decay": (ResumeRule.REFUSED, "EMA weights of two decays do not compare, and cannot begin late"),
    "dataset": (ResumeRule.REFUSED, "other samples: metrics before and after would not compare"),
    "model": (ResumeRule.REFUSED, "another model cannot take these weights, or means something else by them"),
    "task.scalars": (ResumeRule.ANNOUNCED, "other numbers are derived from the fields; what is learned is the same"),
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
    """Return the settings that differ, in the order of the schema.

    What `before`, stored with the checkpoint, lacks, an older version did not know, and counts as the default.
    """
    with suppress(ValidationError, RequestError):  # Of a version with other settings: compared as it stands.
        before = RunConfig.model_validate(before).model_dump(mode="json")
    old, new = dict(flat(before)), dict(flat(now.model_dump(mode="json")))
    keys = [*new, *(key for key in old if key not in new)]
    return [Change(key, old.get(key), new.get(key), *rule_of(key)) for key in keys if old.get(key) != new.get(key)]


def rule_of(key: str) -> tuple[ResumeRule, str]:
    """Return what a changed setting means, and why."""
    while key and key not in RULES:
        key = key.rpartition(".")[0]
    return RULES.get(key, UNLISTED)


def is_accepted(key: str, accept: Sequence[str]) -> bool:
    """Whether `accept_changes` lets a setting change: by its name, by that of a section above it, or by "all"."""
    return any(word == "all" or key == word or key.startswith(f"{word}.") for word in accept)


def accepted_changes(changes: Sequence[Change], accept: Sequence[str], run: str) -> list[str]:
    """Return a line for each change that the user should know of.

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
    return [f"{change}: {change.reason}" for change in changes if change.rule is not ResumeRule.ALLOWED]


def _changes_sizes(key: str) -> bool:
    """Return whether a setting may change how many weights there are, or what they mean."""
    outputs = key in ("task.classes", "task.kind") or key.startswith("task.fields")
    return outputs or (key.startswith("model.") and key not in SAME_SIZES)


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


@dataclass(frozen=True)
class ResumeTarget:
    """The folder a run writes to, and the checkpoint it goes on from (None: it starts from the beginning).

    It is made once, by the process that answers for rank 0, and handed to all ranks; the checkpoint is
    verified, or where `find_target` was not to read it as a `whole`, its meta.json.

    attempts: those at the run when this was decided: where there is another by the time that this one takes the folder,
        the checkpoint is no longer the newest.
    lease: this start's right to write there; None where nothing is to be written.
    changes: a line for each setting that has changed since the checkpoint, and matters.
    """

    folder: RunFolder
    checkpoint: CheckpointFolder | None
    attempts: int
    lease: Lease | None = None
    changes: tuple[str, ...] = ()

    def check_writable(self, verb: str = "train") -> None:
        """As RunFolder's; what has been saved is not left behind: `verb` goes on with it in a copy."""
        self.folder.check_writable(self.folder.as_copy(verb, "resume=COPY") if self.checkpoint else ELSEWHERE)


def find_target(config: RunConfig, warn: Warn = lambda text: None, *, whole: bool = True) -> ResumeTarget:
    """Decide where a run starts, by `resume`, `run_id` and `output_path` as `_find` says.

    warn: told of every damaged checkpoint that was passed over.
    whole: False reads of a checkpoint meta.json alone, for whoever starts a run that will verify it itself.
    RequestError: there is nothing to resume, a new run would overwrite an old one, or settings (`resume_rules`) have
    changed that must not.
    """
    with refusals_told(config.output_path.expanduser(), DISK_ERRNOS):
        target = _find(config, warn, whole)
        if target.checkpoint is None:
            return target
        before = target.checkpoint.meta()["config"]
    changes = accepted_changes(compare_configs(before, config), config.accept_changes, str(target.folder.path))
    return replace(target, changes=tuple(changes))


def _find(config: RunConfig, warn: Warn, whole: bool) -> ResumeTarget:
    """Find the folder and the checkpoint.

    - unset: a new run; an existing run of that name is refused, never overwritten.
    - auto: goes on where run_id has an intact checkpoint, and starts it where it has none.
    - latest: goes on with the run whose checkpoints changed last.
    - a run or checkpoint folder: goes on with that run, from that checkpoint.
    """
    output = config.output_path.expanduser()
    if config.resume is None:
        folder = RunFolder(output / (config.run_id or new_run_id()))
        attempts, holder = attempts_so_far(folder), read_attempt(folder)
        # One that is alive, or may be: that of another host cannot be asked.
        if folder.holds_work() or (holder is not None and holder.alive() is not False):
            raise RequestError(
                "run-exists",
                f"the run {folder.path} exists already",
                seen=f"run_id={config.run_id}, and resume is not set",
                expected="a new run_id, or resume=auto, which continues that run",
                fix="resume=auto      (or run_id=ANOTHER_NAME)",
            )
        return ResumeTarget(folder, None, attempts)
    if config.resume == "auto":
        if config.run_id is None:
            raise RequestError(
                "resume-auto-unnamed",
                "resume=auto needs to know which run",
                seen="run_id is not set",
                expected="the name that the first start used as well",
                fix="run_id=NAME      (or resume=latest)",
            )
        return _newest(RunFolder(output / config.run_id), warn, whole, may_begin=True)
    if config.resume == "latest":
        newest = newest_run(output)
        if newest is None:
            raise RequestError(
                "no-run-to-resume",
                f"no run to resume in {output}",
                seen="no run with a checkpoint",
                expected="an earlier run",
                fix="resume=null      (or output_path=FOLDER)",
            )
        return _newest(newest, warn, whole)
    return _named(config.resume, output, warn, whole)


def _named(named: str, output: Path, warn: Warn, whole: bool) -> ResumeTarget:
    """Go on with the run that is named, from its newest checkpoint or the one that is."""
    (run, name), path = named_run(named), Path(named).expanduser()
    folder = RunFolder(run.resolve())
    if (path / META).is_file() and not is_run(run):
        raise RequestError(
            "checkpoint-outside-run",
            f"{path} is a checkpoint outside a run",
            seen=f"{path.resolve().parent.parent} is no run",
            expected="RUN/checkpoints/update-000001234",
            fix="resume=RUN      (the run's folder)",
        )
    inside = {one.name: one for one in checkpoint_paths(folder.checkpoints)}
    inside |= {word: folder.checkpoints / word for word in ("best", "latest") if inside}
    if not run.exists() or (name is not None and inside and name not in inside):
        runs = [one for one in output.iterdir() if is_run(one)] if output.is_dir() else []
        found = inside or {one.name: one for one in [*runs, Path("auto"), Path("latest")]}
        near = nearest(path.name, found) or ("latest" if inside or newest_run(output) else "")
        raise RequestError(
            "nothing-to-resume",
            f"nothing to resume at {path}",
            seen="no such folder",
            expected="auto, latest, a run folder or one of its checkpoints",
            fix=f"resume={found[near]}" if near else "leave resume out",
        )
    existing_run(run, "resume={}")
    if name is None:
        return _newest(folder, warn, whole)
    attempts = attempts_so_far(folder)
    checkpoint = named_checkpoint(folder, name, f"resume={folder.path}      (the newest intact one)", whole=whole)
    return ResumeTarget(folder, checkpoint, attempts)


def _newest(folder: RunFolder, warn: Warn, whole: bool, *, may_begin: bool = False) -> ResumeTarget:
    """Go on from the newest intact checkpoint of a run; `may_begin` lets one begin that has never saved any."""
    attempts = attempts_so_far(folder)
    recover_replaced(folder.checkpoints)
    # Where every checkpoint is damaged or gone, starting over would hide what may still be repaired. Asked first: what
    # another attempt saves meanwhile is found below.
    told = (row["kind"] for row in read_metrics(folder.metrics))
    begins = not list_checkpoints(folder.checkpoints) and "checkpoint" not in told
    checkpoint = newest_intact(folder.checkpoints, warn, whole=whole)
    if checkpoint is None and (renamed := _begun_as(folder)):
        warn(f"{renamed} was called {folder.run_id} when it last saved: resume={renamed} goes on with it")
    if checkpoint is None and begins and not may_begin:
        place = (f"output_path={override_value(str(folder.path.parent))}", f"run_id={override_value(folder.run_id)}")
        raise RequestError(
            "nothing-saved-yet",
            f"{folder.path} has saved nothing yet",
            seen=f"none in {folder.checkpoints}, and none in its history",
            expected="a run with a checkpoint",
            fix=f"--hp {shlex.quote(str(folder.config))} {shlex.join(place)} resume=auto      (begins it)",
        )
    if checkpoint is None and not begins:
        raise no_intact_checkpoint(folder.checkpoints)
    return ResumeTarget(folder, checkpoint, attempts)


def _begun_as(folder: RunFolder) -> Path | None:
    """Return the run beside a folder that had its name when it last saved, and was renamed since; None: there is none.

    One that was put aside for a run that starts over is none.
    """
    for place in folder.path.parent.glob("*/checkpoints"):
        saved = list_checkpoints(place) if REPLACED not in place.parent.name else []
        with suppress(DamagedCheckpoint):
            if saved and place != folder.checkpoints and saved[-1].meta().get("run_id") == folder.run_id:
                return place.parent
    return None

"""Decide in which folder a run starts, and from which checkpoint it resumes. No torch here."""

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
from noether.runs.records import mapping, read_metrics


class ResumeRule(Enum):
    """The effect of a changed setting on a resumed run."""

    ALLOWED = "changes nothing that is learned"
    ANNOUNCED = "changes what is learned, as the user clearly intends; the run continues and prints the change"
    REFUSED = "makes it a different run; refused unless accept_changes names the key"


# The rule of a setting is its own entry or, if it has none, the entry of its nearest parent section.
RULES = {
    "accelerator": (ResumeRule.ANNOUNCED, "other devices round differently; the order of samples continues"),
    "devices": (ResumeRule.ALLOWED, "the order of samples does not depend on the number of ranks"),
    **dict.fromkeys(("master_port", "master_addr"), (ResumeRule.ALLOWED, "where the ranks meet")),
    **dict.fromkeys(("nodes", "node_rank"), (ResumeRule.ALLOWED, "where the ranks run")),
    "distributed": (ResumeRule.ALLOWED, "how long ranks wait for each other"),
    "dataset_root": (ResumeRule.ALLOWED, "where the same data is stored"),
    **dict.fromkeys(("output_path", "run_id"), (ResumeRule.ALLOWED, "where the run is stored")),
    **dict.fromkeys(("resume", "accept_changes"), (ResumeRule.ALLOWED, "how it resumes")),
    "initial_weights": (ResumeRule.ALLOWED, "where the run began; it resumes from its own weights"),
    "num_workers": (ResumeRule.ALLOWED, "how many processes read the data"),
    **dict.fromkeys(("tracker", "trainer.log_every", "trainer.profile"), (ResumeRule.ALLOWED, "what is shown")),
    "slurm": (ResumeRule.ALLOWED, "what a job requests"),
    "trainer.max_epochs": (ResumeRule.ANNOUNCED, "a schedule that spans the run is stretched from here on"),
    "trainer.max_updates": (ResumeRule.ANNOUNCED, "a schedule that spans the run is stretched from here on"),
    "trainer.max_samples": (ResumeRule.ANNOUNCED, "a schedule that spans the run is stretched from here on"),
    "trainer.max_batch_size": (ResumeRule.ALLOWED, "accumulation learns the same, to rounding"),
    "trainer.across_ranks": (ResumeRule.REFUSED, "the loss compares each sample with other samples"),
    "trainer.evaluate_every": (ResumeRule.ANNOUNCED, "weights are selected at other updates from here on"),
    **dict.fromkeys(("trainer.checkpoint_every", "trainer.keep_checkpoints"), (ResumeRule.ALLOWED, "what is kept")),
    "trainer.select_by": (ResumeRule.REFUSED, "values of two metrics cannot be compared"),
    "trainer.stop_after": (ResumeRule.ANNOUNCED, "the run ends earlier or later"),
    "trainer.callbacks": (ResumeRule.ANNOUNCED, "other code is called from here on"),
    "trainer.evaluation_batch_size": (ResumeRule.ANNOUNCED, "only a loss that compares samples changes"),
    "trainer.evaluation_chunk_size": (ResumeRule.ALLOWED, "a prediction does not depend on its chunk"),
    "trainer.timeout_min": (ResumeRule.ALLOWED, "when it stops"),
    "trainer.freeze": (ResumeRule.REFUSED, "the optimiser has no state for other parameters"),
    "trainer.nan_policy": (ResumeRule.ALLOWED, "what happens when a number is not finite"),
    "trainer.max_skipped_updates": (ResumeRule.ALLOWED, "what happens when a number is not finite"),
    "trainer.compile": (ResumeRule.ANNOUNCED, "a compiled model rounds differently"),
    "trainer.tf32": (ResumeRule.ANNOUNCED, "matrix products on a GPU are rounded differently"),
    "trainer.recompute": (ResumeRule.ALLOWED, "the gradients are the same bit for bit"),
    "trainer.deterministic": (ResumeRule.ANNOUNCED, "other algorithms round differently"),
    "trainer.clip_gradient_norm": (ResumeRule.ANNOUNCED, "updates are clipped differently from here on"),
    "trainer.clip_gradient_value": (ResumeRule.ANNOUNCED, "updates are clipped differently from here on"),
    "optimizer.kind": (ResumeRule.REFUSED, "another optimiser cannot use this one's state"),
    "optimizer": (ResumeRule.ANNOUNCED, "updates are made differently from here on"),
    "schedule": (ResumeRule.ANNOUNCED, "the learning rate follows another curve from here on"),
    "seed": (ResumeRule.REFUSED, "order of samples and random numbers would be those of another run"),
    "trainer.effective_batch_size": (ResumeRule.REFUSED, "the position in the order of samples is counted in batches"),
    "trainer.precision": (ResumeRule.REFUSED, "weights and gradients would have other values"),
    "trainer.ema_decay": (ResumeRule.REFUSED, "EMA of two decays cannot be compared, and EMA cannot begin late"),
    "dataset": (ResumeRule.REFUSED, "other samples: metrics before and after could not be compared"),
    "model": (ResumeRule.REFUSED, "these weights do not fit another model"),
    "task.scalars": (ResumeRule.ANNOUNCED, "other scalars are derived from the fields; what is learned is the same"),
    "task": (ResumeRule.REFUSED, "another loss and other statistics"),
}
SAME_SIZES = ("model.supernodes", "model.radius", "model.max_neighbours", "model.dropout")
"""Model settings that change no weight's size. A change of size cannot be accepted: the weights would never fit."""
UNLISTED = (ResumeRule.REFUSED, "the effect of this setting is unknown")


@dataclass(frozen=True)
class Change:
    """One setting that differs between the resumed run and the current request."""

    key: str
    before: Any
    now: Any
    rule: ResumeRule
    reason: str

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.before)} → {_shown(self.now)}"


def compare_configs(before: Mapping[str, Any], now: RunConfig) -> list[Change]:
    """Return the settings that differ, in the order of the schema.

    before: the checkpoint's settings. For a setting that an older version did not have, assume the default.
    """
    with suppress(ValidationError, RequestError):  # If another version wrote `before`, compare it as stored.
        before = RunConfig.model_validate(before).model_dump(mode="json")
    old, new = dict(flat(before)), dict(flat(now.model_dump(mode="json")))
    keys = [*new, *(key for key in old if key not in new)]
    return [Change(key, old.get(key), new.get(key), *rule_of(key)) for key in keys if old.get(key) != new.get(key)]


def rule_of(key: str) -> tuple[ResumeRule, str]:
    """Return the rule for a changed setting, and its reason."""
    while key and key not in RULES:
        key = key.rpartition(".")[0]
    return RULES.get(key, UNLISTED)


def is_accepted(key: str, accept: Sequence[str]) -> bool:
    """Return whether `accept_changes` names a setting, a section that contains it, or "all"."""
    return any(word == "all" or key == word or key.startswith(f"{word}.") for word in accept)


def accepted_changes(changes: Sequence[Change], accept: Sequence[str], run: str) -> list[str]:
    """Return a line for each change that the user should know about.

    accept: keys or sections that the user has accepted; "all" accepts every key.
    RequestError: some changes are refused. The error lists the refused changes, the reasons, and a line to accept them.
    """
    refused = [one for one in changes if one.rule is ResumeRule.REFUSED and not is_accepted(one.key, accept)]
    if refused:
        widest = max(len(str(change)) for change in refused)
        # Also propose keys accepted already. Propose the data set as a whole: each of its settings changes the data.
        proposed = ("dataset" if change.key.startswith("dataset.") else change.key for change in refused)
        keys = ",".join(dict.fromkeys([*accept, *proposed]))
        other = f"'accept_changes=[{keys}]'      (or resume=null run_id=ANOTHER_NAME for a new run)"
        if any(_changes_sizes(change.key) for change in refused):
            other = "resume=null run_id=ANOTHER_NAME      (starts a new run, because these weights have other sizes)"
        raise RequestError(
            "settings-changed",
            f"the run {run} was saved with other settings",
            seen="\n".join(f"{change!s:<{widest}}   {change.reason}" for change in refused),
            expected="the settings of the resumed run, or accept_changes if the change is intended",
            fix=f"{continue_line(Path(run))}      (resumes with the run's own settings)\n" + other,
        )
    return [f"{change}: {change.reason}" for change in changes if change.rule is not ResumeRule.ALLOWED]


def _changes_sizes(key: str) -> bool:
    """Return whether a setting may change the number of weights or their meaning."""
    outputs = key in ("task.classes", "task.kind") or key.startswith("task.fields")
    return outputs or (key.startswith("model.") and key not in SAME_SIZES)


def _shown(value: Any) -> str:
    text = "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


@dataclass(frozen=True)
class ResumeTarget:
    """The folder that a run writes to, and the checkpoint from which it resumes (None: it starts from the beginning).

    The process responsible for rank 0 creates one target and passes it to all ranks. The checkpoint is verified, or
    only its meta.json if `find_target` was called with `whole=False`.

    attempts: number of attempts at the run when the target was chosen. If another attempt starts before this attempt
        takes the folder, the checkpoint may no longer be the newest.
    lease: this attempt's right to write to the folder; None if nothing will be written.
    changes: a line for each relevant setting that has changed since the checkpoint.
    """

    folder: RunFolder
    checkpoint: CheckpointFolder | None
    attempts: int
    lease: Lease | None = None
    changes: tuple[str, ...] = ()

    def check_writable(self, verb: str = "train") -> None:
        """Check that the folder is writable; if not, and the run resumes, propose the command `verb` on a copy."""
        self.folder.check_writable(self.folder.as_copy(verb, "resume=COPY") if self.checkpoint else ELSEWHERE)


def find_target(config: RunConfig, warn: Warn = lambda text: None, *, whole: bool = True) -> ResumeTarget:
    """Find a run's folder and checkpoint from the settings `resume`, `run_id` and `output_path`, as `_find` describes.

    warn: receives a warning for every damaged checkpoint that is skipped.
    whole: False to verify only a checkpoint's meta.json, if the started run will verify the other files itself.
    RequestError: there is nothing to resume, a new run would overwrite an old one, or a setting has changed that must
    not change (see `RULES`).
    """
    with refusals_told(config.output_path.expanduser(), DISK_ERRNOS):
        target = _find(config, warn, whole)
        if target.checkpoint is None:
            return target
        before = target.checkpoint.meta()["config"]
    changes = accepted_changes(compare_configs(before, config), config.accept_changes, str(target.folder.path))
    return replace(target, changes=tuple(changes))


def _find(config: RunConfig, warn: Warn, whole: bool) -> ResumeTarget:
    """Find the folder and the checkpoint that `resume` selects.

    - unset: start a new run. If a run of that name exists, raise RequestError, so that it is not overwritten.
    - auto: resume the run `run_id` from its newest intact checkpoint, or start it if it has never saved one.
    - latest: resume the run that saved a checkpoint most recently.
    - a run folder: resume from its newest intact checkpoint; a checkpoint folder: resume from that checkpoint.
    """
    output = config.output_path.expanduser()
    if config.resume is None:
        folder = RunFolder(output / (config.run_id or new_run_id()))
        attempts, holder = attempts_so_far(folder), read_attempt(folder)
        # Also refuse if an attempt runs, or may run: this host cannot check processes on another host.
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
                expected="the run_id of the run to resume or start",
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
                expected="a run that has saved a checkpoint",
                fix="resume=null      (starts a new run; or output_path=FOLDER, to look elsewhere)",
            )
        return _newest(newest, warn, whole)
    return _named(config.resume, output, warn, whole)


def _named(named: str, output: Path, warn: Warn, whole: bool) -> ResumeTarget:
    """Resume from the checkpoint at the path `named` or, if a run is there, from the run's newest intact checkpoint."""
    (run, name), path = named_run(named), Path(named).expanduser()
    folder = RunFolder(run.resolve())
    if (path / META).is_file() and not is_run(run):
        raise RequestError(
            "checkpoint-outside-run",
            f"{path} is a checkpoint outside a run",
            seen=f"{path.resolve().parent.parent} is not a run",
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
    """Resume a run from its newest intact checkpoint. With `may_begin=True`, start a run that has saved none."""
    attempts = attempts_so_far(folder)
    recover_replaced(folder.checkpoints)
    # If every checkpoint is damaged or gone, do not start over: that would hide checkpoints that may still be repaired.
    # Check this first, so that a checkpoint that another attempt saves in the meantime is found below.
    told = (row["kind"] for row in read_metrics(folder.metrics))
    begins = not list_checkpoints(folder.checkpoints) and "checkpoint" not in told
    checkpoint = newest_intact(folder.checkpoints, warn, whole=whole)
    if checkpoint is None and (renamed := _begun_as(folder)):
        warn(f"{renamed} was called {folder.run_id} when it last saved: resume={renamed} resumes it")
    if checkpoint is None and begins and not may_begin:
        place = (f"output_path={override_value(str(folder.path.parent))}", f"run_id={override_value(folder.run_id)}")
        raise RequestError(
            "nothing-saved-yet",
            f"{folder.path} has saved nothing yet",
            seen=f"no checkpoint in {folder.checkpoints} or in its history",
            expected="a run with a checkpoint",
            fix=f"--hp {shlex.quote(str(folder.config))} {shlex.join(place)} resume=auto      (starts the run)",
        )
    if checkpoint is None and not begins:
        raise no_intact_checkpoint(folder.checkpoints)
    return ResumeTarget(folder, checkpoint, attempts)


def _begun_as(folder: RunFolder) -> Path | None:
    """Return the folder of a sibling run that last saved under this folder's name and was then renamed, or None.

    Ignore folders that were moved away to start their run over.
    """
    for place in folder.path.parent.glob("*/checkpoints"):
        saved = list_checkpoints(place) if REPLACED not in place.parent.name else []
        with suppress(DamagedCheckpoint):
            if saved and place != folder.checkpoints and saved[-1].meta().get("run_id") == folder.run_id:
                return place.parent
    return None


def data_changes(meta: Mapping[str, Any], now: Mapping[str, Any], accepted: Sequence[str], run: str) -> list[str]:
    """Compare a run's data with its checkpoint's; return a line if they differ and the settings accept that.

    meta: the checkpoint's meta.json. now: the data of this attempt, from `data_identity`.
    RequestError: the data differ, and `accepted` contains neither "dataset" nor "all".
    """
    before = mapping(meta, "data") or now
    if before == now:
        return []
    seen, expected = (
        f"{data.get('training')} and {data.get('test')} samples, digest {str(data.get('digest'))[:12]}"
        for data in (now, before)
    )
    if not is_accepted("dataset", accepted):
        raise RequestError("resume-other-data", f"the data differ from the data that {run} was trained on",
                           expected=expected, seen=f"{seen} (training and test)",
                           fix="dataset_root=FOLDER      (the folder of the previous data)\n"
                           f"'accept_changes=[{','.join([*accepted, 'dataset'])}]'      (continues with these data; "
                           "resume=null run_id=ANOTHER_NAME starts a new run)")  # fmt: skip
    return [f"the data have changed since the checkpoint, as accepted: {expected} before, {seen} now"]

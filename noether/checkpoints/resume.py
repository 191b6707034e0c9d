"""Decides from which checkpoint a run resumes, and in which folder. No torch here."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path

from noether.checkpoints.format import (
    META,
    CheckpointFolder,
    Warn,
    list_checkpoints,
    newest_intact,
    no_intact_checkpoint,
    recover_replaced,
)
from noether.checkpoints.named import named_checkpoint
from noether.checkpoints.resume_rules import accepted_changes, compare_configs
from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.common.whole_file import DISK_ERRNOS, ELSEWHERE, refusals_told
from noether.config.schema import RunConfig
from noether.config.sweep import override_value
from noether.runs.folder import RunFolder, checkpoint_paths, existing_run, is_run, named_run, new_run_id, newest_run
from noether.runs.lease import Lease, attempts_so_far, read_attempt
from noether.runs.records import read_metrics


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
    """Decides where a run starts, by `resume`, `run_id` and `output_path` as `_find` says.

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
    """Finds the folder and the checkpoint.

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
    """Goes on with the run that is named, from its newest checkpoint or the one that is."""
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
    """Goes on from the newest intact checkpoint of a run; `may_begin` lets one begin that has never saved any."""
    attempts = attempts_so_far(folder)
    recover_replaced(folder.checkpoints)
    # Where every checkpoint is damaged or gone, starting over would hide what may still be repaired. Asked first: what
    # another attempt saves meanwhile is found below.
    told = (row["kind"] for row in read_metrics(folder.metrics))
    begins = not list_checkpoints(folder.checkpoints) and "checkpoint" not in told
    checkpoint = newest_intact(folder.checkpoints, warn, whole=whole)
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

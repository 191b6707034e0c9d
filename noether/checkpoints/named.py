"""Find and verify the checkpoint that a user names, and the weights that `initial_weights` names. No torch."""

from pathlib import Path

from noether.checkpoints.format import (
    META,
    WEIGHTS,
    CheckpointFolder,
    DamagedCheckpoint,
    list_checkpoints,
    selected_checkpoint,
)
from noether.common.errors import RequestError
from noether.common.safe_open import StampedFile, is_plain, stamped
from noether.common.suggest import one_of
from noether.core.data.packed import check_digest, digest_path
from noether.runs.folder import RunFolder, named_run

BEST = "      (the best that is intact)"
"""Remark appended to a fix line that proposes another checkpoint."""


def named_checkpoint(folder: RunFolder, name: str | None, fix: str, *, whole: bool = True) -> CheckpointFolder:
    """Return a verified checkpoint of a run; whole=False verifies meta.json alone.

    name: best, latest or a checkpoint's name; None means best. If the best checkpoint is damaged, raise an error.
    fix: the line to type to use another checkpoint, with {} for that checkpoint's name.
    RequestError: there is no such checkpoint, or it is damaged.
    """
    found = {checkpoint.path.name: checkpoint for checkpoint in list_checkpoints(folder.checkpoints)}
    if not found:
        raise RequestError("no-checkpoint-yet", f"{folder.path} has no checkpoint yet",
                           seen=f"nothing in {folder.checkpoints}", expected="a run that has written a checkpoint",
                           fix=f"noether logs {folder.path}      (shows how far the run has come)")  # fmt: skip
    name = one_of("checkpoint", name or "best", ("best", "latest", *found))
    if name == "best":
        passed_over: list[str] = []
        best = selected_checkpoint(folder.checkpoints, passed_over.append, whole=whole)
        if passed_over:
            raise DamagedCheckpoint(
                "best-checkpoint-damaged", f"the best checkpoint of {folder.path} is damaged or missing",
                seen="\n".join(passed_over), expected="the checkpoint that the run was evaluated with",
                fix=fix.replace("{}", best.path.name),
            )  # fmt: skip
        return best
    chosen = {"latest": list(found.values())[-1], **found}[name]
    chosen.check(fix.replace("{}", "best"), whole=whole)
    return chosen


def named_weights(where: str) -> StampedFile:
    """Return the file of the weights that `where` names: a run, a checkpoint, an export or a file.

    Verify a file that is in a checkpoint or has a digest file next to it. For a run, use only the best checkpoint.

    RequestError: `where` names no weights, or they are damaged.
    """
    path = Path(where).expanduser()
    if path.is_file():
        return CheckpointFolder(path.parent).verified(path.name) if (path.parent / META).exists() else _checked(path)
    run, name = named_run(path)
    checkpoint = CheckpointFolder(path) if (path / META).exists() else None
    if list_checkpoints(run / "checkpoints"):
        checkpoint = named_checkpoint(RunFolder(run), name, f"initial_weights={run}/checkpoints/{{}}{BEST}")
    if checkpoint is not None:
        return checkpoint.verified(WEIGHTS[checkpoint.weights[0]])
    if (path / "model.safetensors").is_file():
        return _checked(path / "model.safetensors")
    raise RequestError(
        "no-weights-there", f"initial_weights={where} holds no weights",
        seen="no such file or folder" if not path.exists() else "a folder without checkpoints or model.safetensors",
        expected="a run's folder, a checkpoint, an export, or a .safetensors file", fix="leave initial_weights out",
    )  # fmt: skip


def _checked(path: Path) -> StampedFile:
    found = stamped(path)
    if is_plain(digest_path(path)):
        check_digest(path)
    return found

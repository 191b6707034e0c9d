"""Which file `initial_weights` names. No torch."""

from pathlib import Path

from noether.checkpoints.format import META, CheckpointFolder, best_or_refused, list_checkpoints
from noether.common.plain_file import is_plain
from noether.data.packed import check_digest, digest_path
from noether.errors import RequestError
from noether.runs.folder import is_run


def weights_file(where: str) -> Path:
    """Returns the file of weights that a run, a checkpoint, an export or a file names.

    What lies in a checkpoint or has its digest beside it is verified; of a run it is the best one and no other.

    Raises:
        RequestError: none is there, or it is not as it was written.
    """
    path = Path(where).expanduser()
    if path.is_file():
        checkpoint = CheckpointFolder(path.parent)
        return checkpoint.verified(path.name) if (path.parent / META).exists() else _checked(path)
    folder = path
    if list_checkpoints(path / "checkpoints"):
        folder = best_or_refused(path / "checkpoints", f"initial_weights={path}/checkpoints/{{}}").path
    if (folder / META).exists():
        checkpoint = CheckpointFolder(folder)
        return checkpoint.verified("ema.safetensors" if checkpoint.has("ema.safetensors") else "model.safetensors")
    if (folder / "model.safetensors").is_file():
        return _checked(folder / "model.safetensors")
    raise RequestError(
        "no-weights-there",
        f"initial_weights={where} holds no weights",
        seen="no such file or folder" if not path.exists() else "a folder without checkpoints or model.safetensors",
        expected="a run's folder, a checkpoint, an export, or a .safetensors file",
        fix=f"initial_weights={Path('runs') / path}" if is_run(Path("runs") / path) else "leave initial_weights out",
    )


def _checked(path: Path) -> Path:
    if is_plain(digest_path(path)):
        check_digest(path)
    return path

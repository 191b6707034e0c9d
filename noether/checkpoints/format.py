"""Checkpoints on disk: written whole or not at all, verified before use. No torch here.

A checkpoint is a folder `update-000001234/` of plain files (safetensors and JSON, nothing that runs code
when it is read). Its `meta.json` names the format's version, each file's SHA-256 and its own; it is written last,
into a folder of another name, which is then renamed.
"""

import json
import math
import os
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

FORMAT = 2
"""2: meta.json holds its own SHA-256 and the run's settings, state.json an evaluation that a stop cut short."""

_PREFIX = "update-"
_REPLACED = ".replaced"


@dataclass(frozen=True)
class CheckpointFolder:
    """One checkpoint on disk."""

    path: Path

    @property
    def updates(self) -> int:
        """Updates that the run had made."""
        return int(self.path.name.removeprefix(_PREFIX))

    def meta(self) -> dict[str, Any]:
        """Returns meta.json. Raises OSError or ValueError where it cannot be read."""
        content = json.loads((self.path / "meta.json").read_text())
        if not isinstance(content, dict):
            raise ValueError("meta.json holds no object")
        return content

    def damage(self) -> str | None:
        """Returns what is wrong with the checkpoint, or None where every file is as it was written."""
        try:
            meta = self.meta()
        except (OSError, ValueError) as error:
            return f"meta.json cannot be read: {error}"
        if meta.get("format") != FORMAT:
            return f"format {meta.get('format')} is not {FORMAT}, the one this version reads"
        if meta.get("meta_sha256") != _meta_digest(meta):
            return "meta.json has another SHA-256 than when it was written"
        for name, expected in meta["sha256"].items():
            try:
                with (self.path / name).open("rb") as file:
                    found = file_digest(file, "sha256").hexdigest()
            except OSError as error:
                return f"{name} cannot be read: {error.strerror}"
            if found != expected:
                return f"{name} has another SHA-256 than when it was written"
        return None


def list_checkpoints(folder: Path) -> list[CheckpointFolder]:
    """Returns a run's complete checkpoints, oldest first; half-written ones have another name."""
    found = [CheckpointFolder(path) for path in folder.glob(f"{_PREFIX}*") if (path / "meta.json").is_file()]
    return sorted(found, key=lambda checkpoint: checkpoint.updates)


def newest_intact(folder: Path, warn: Callable[[str], None]) -> CheckpointFolder | None:
    """Returns the newest checkpoint that verifies; damaged ones are named to `warn` and passed over."""
    for checkpoint in reversed(list_checkpoints(folder)):
        damage = checkpoint.damage()
        if damage is None:
            return checkpoint
        warn(f"checkpoint {checkpoint.path.name} is damaged and passed over: {damage}")
    return None


def best_checkpoint(folder: Path) -> CheckpointFolder | None:
    """Returns the checkpoint with the lowest selection metric, the earlier of two equals, or None."""
    rated = [(metric, c.updates, c) for c in list_checkpoints(folder) if (metric := _metric(c)) is not None]
    return min(rated, key=lambda item: (item[0], item[1]))[2] if rated else None


def _metric(checkpoint: CheckpointFolder) -> float | None:
    """The selection metric of a checkpoint; None where it has none, or cannot be read, or is not finite."""
    try:
        metric = checkpoint.meta().get("metric")
    except (OSError, ValueError):
        return None
    return float(metric) if isinstance(metric, (int, float)) and math.isfinite(metric) else None


def newest_update(folder: Path) -> int:
    """Returns the update of the newest checkpoint in a folder; 0 where there is none."""
    found = list_checkpoints(folder)
    return found[-1].updates if found else 0


def selected_checkpoint(folder: Path) -> CheckpointFolder:
    """Returns the checkpoint that stands for a run: the best on the validation split, else the newest.

    Raises:
        FileNotFoundError: where the run has no checkpoint.
    """
    every = list_checkpoints(folder)
    if not every:
        raise FileNotFoundError(f"no checkpoint in {folder}")
    return best_checkpoint(folder) or every[-1]


def write_checkpoint(
    folder: Path,
    updates: int,
    files: Iterable[tuple[str, Callable[[Path], str]]],
    meta: dict[str, Any],
    before_rename: Callable[[], None] = lambda: None,
) -> CheckpointFolder:
    """Writes one checkpoint: every file, then meta.json, each flushed to the disk, then the rename.

    Args:
        folder: the run's checkpoints folder.
        updates: updates made; names the checkpoint.
        files: file names with the function that writes and flushes each, and returns its SHA-256.
        meta: further content of meta.json.
        before_rename: called when all is on the disk and nothing has its name yet; what it raises leaves it so.

    Raises:
        OSError: where the disk refuses; the checkpoints that were there are as they were.
    """
    final = folder / f"{_PREFIX}{updates:09d}"
    partial = folder / f".{final.name}.{os.getpid()}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    if not folder.exists():
        folder.mkdir(parents=True)
        flush_folder(folder.parent)
    partial.mkdir()
    try:
        digests = {name: write(partial / name) for name, write in files}
        content = {"format": FORMAT, "updates": updates, **meta, "sha256": digests}
        content["meta_sha256"] = _meta_digest(content)
        write_flushed(partial / "meta.json", [json.dumps(content, indent=2).encode()])
        flush_folder(partial)
        before_rename()
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)  # On a full disk its bytes are what others wait for.
        raise
    if final.exists():
        # The same state, written before with less knowledge (an evaluation that was cut short): the new one replaces
        # it. `recover_replaced` gives the old one its name back, should this be the last moment of the process.
        old = folder / f".{final.name}.{os.getpid()}{_REPLACED}"
        final.rename(old)
        partial.rename(final)
        flush_folder(folder)
        shutil.rmtree(old)
    else:
        partial.rename(final)
    flush_folder(folder)
    return CheckpointFolder(final)


def recover_replaced(folder: Path) -> None:
    """Gives a checkpoint its name back that was put aside for a new one which then never came."""
    for old in folder.glob(f".{_PREFIX}*{_REPLACED}"):
        final = folder / old.name.removeprefix(".").partition(".")[0]
        if not (final / "meta.json").is_file() and (old / "meta.json").is_file():
            old.rename(final)


def write_flushed(path: Path, parts: Iterable[bytes | memoryview]) -> str:
    """Writes a file from its parts, waits until the disk has it, and returns the SHA-256 of what was written."""
    digest = sha256()
    with path.open("wb", buffering=0) as file:
        for part in parts:
            digest.update(part)
            view = memoryview(part)
            while view:  # An unbuffered write may take less than all of it.
                view = view[file.write(view) :]
        os.fsync(file.fileno())
    return digest.hexdigest()


def prune_checkpoints(folder: Path, keep: int) -> list[CheckpointFolder]:
    """Removes all but the newest `keep` checkpoints and the best one, and leftovers of broken writes.

    Returns:
        The checkpoints that were removed.
    """
    checkpoints = list_checkpoints(folder)
    best = best_checkpoint(folder)
    removed = [c for c in checkpoints[:-keep] if best is None or c.path != best.path]
    for checkpoint in removed:
        remove_checkpoint(checkpoint)
    remove_leftovers(folder)
    return removed


def remove_leftovers(folder: Path) -> None:
    """Removes what broken writes and removals have left; whoever calls it is the folder's one writer."""
    for leftover in folder.glob(f".{_PREFIX}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def drop_checkpoints_after(folder: Path, updates: int) -> None:
    """Removes the checkpoints of a history that a run has left by resuming from an earlier one."""
    for checkpoint in list_checkpoints(folder):
        if checkpoint.updates > updates:
            remove_checkpoint(checkpoint)


def remove_checkpoint(checkpoint: CheckpointFolder) -> None:
    """Removes one checkpoint."""
    # Renamed first: a removal that is cut short must not leave a folder that looks like a checkpoint.
    doomed = checkpoint.path.with_name(f".{checkpoint.path.name}.{os.getpid()}.removed")
    checkpoint.path.rename(doomed)
    shutil.rmtree(doomed)


def _meta_digest(meta: dict[str, Any]) -> str:
    own = {key: value for key, value in meta.items() if key != "meta_sha256"}
    return sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def flush_folder(path: Path) -> None:
    """Waits until the disk knows the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

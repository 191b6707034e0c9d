"""Which checkpoints of a run go: all but the newest and the best, those of a history that was left, and leftovers."""

import shutil
from pathlib import Path

from noether.checkpoints.format import best_checkpoint, list_checkpoints
from noether.common.whole_file import UNFENCED, Publisher
from noether.runs.folder import UPDATE


def prune_checkpoints(folder: Path, keep: int, by: Publisher = UNFENCED) -> None:
    """Removes all but the newest `keep` checkpoints and the best one, and leftovers of broken writes."""
    best = best_checkpoint(folder)
    for checkpoint in list_checkpoints(folder)[:-keep]:
        if checkpoint != best:
            by.drop(checkpoint.path)
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Removes what interrupted writes and removals have left; only the folder's one writer may call it."""
    for leftover in folder.glob(f".{UPDATE}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def drop_checkpoints_after(folder: Path, updates: int, by: Publisher = UNFENCED) -> None:
    """Removes the checkpoints of a history that a run has left by resuming from an earlier one."""
    for checkpoint in list_checkpoints(folder):
        if checkpoint.updates > updates:
            by.drop(checkpoint.path)

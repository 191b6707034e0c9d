"""Which checkpoints of a run go: all but the newest and the best, those of a history that was left, and leftovers."""

import shutil
from collections.abc import Callable
from pathlib import Path

from noether.checkpoints.format import CheckpointFolder, list_checkpoints, ranked
from noether.common.whole_file import UNFENCED, Publisher
from noether.runs.folder import UPDATE


def prune_checkpoints(folder: Path, keep: int, by: Publisher = UNFENCED) -> None:
    """Removes what `choose_to_prune` chooses by the checkpoints' meta.json alone, and leftovers of broken writes."""
    for checkpoint in choose_to_prune(folder, keep, lambda one: one.damage(whole=False) is not None):
        by.drop(checkpoint.path)
    remove_leftovers(folder)


def choose_to_prune(folder: Path, keep: int, is_damaged: Callable[[CheckpointFolder], bool]) -> list[CheckpointFolder]:
    """Returns the checkpoints that may go: all but the newest `keep` that are intact, and the best of these.

    Where none is intact, none may go: one may still be repaired.
    """
    found = list_checkpoints(folder)
    intact = [one for one in found if not is_damaged(one)]
    kept = [*intact[-keep:], *ranked(intact)[:1]]
    return [one for one in found if one not in kept] if intact else []


def remove_leftovers(folder: Path) -> None:
    """Removes what interrupted writes and removals have left; only the folder's one writer may call it."""
    for leftover in folder.glob(f".{UPDATE}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def drop_checkpoints_after(folder: Path, updates: int, by: Publisher = UNFENCED) -> None:
    """Removes the checkpoints of a history that a run has left by resuming from an earlier one."""
    for checkpoint in list_checkpoints(folder):
        if checkpoint.updates > updates:
            by.drop(checkpoint.path)

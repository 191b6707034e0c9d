"""Lists a run's checkpoints, whether they are intact, and which may be removed. No torch here."""

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from noether.checkpoints.format import CheckpointFolder, DamagedCheckpoint, list_checkpoints, ranked
from noether.common.numbers import duration_text, size_text
from noether.runs.folder import RunFolder
from noether.runs.records import is_count, number


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint: its place in the run, size in bytes, age in seconds, what it is, and what is wrong with it.

    `damage` is None where every file is as it was written, and where that was not asked (`verified` False).
    """

    name: str
    update: int
    epoch: float | None
    metric: float | None
    size: int
    age_s: float
    best: bool
    latest: bool
    verified: bool
    damage: str | None


def describe_checkpoints(folder: RunFolder, *, verify: bool) -> list[CheckpointRow]:
    """Returns a row for each checkpoint of a run, oldest first; `verify` reads every byte of them."""
    found = list_checkpoints(folder.checkpoints)
    best = ranked(one for one in found if one.damage(whole=verify) is None)[:1]
    return [_describe(checkpoint, checkpoint in best, checkpoint == found[-1], verify) for checkpoint in found]


def _describe(checkpoint: CheckpointFolder, best: bool, latest: bool, verify: bool) -> CheckpointRow:
    meta: dict[str, Any] = {}
    with suppress(DamagedCheckpoint):
        meta = checkpoint.meta()
    per_epoch = meta.get("updates_per_epoch")
    inside = checkpoint.path.iterdir() if checkpoint.path.is_dir() else [checkpoint.path]
    files = [path.lstat() for path in inside]
    return CheckpointRow(
        name=checkpoint.path.name,
        update=checkpoint.updates,
        epoch=checkpoint.updates / per_epoch if is_count(per_epoch) and per_epoch else None,
        metric=number(meta, "metric"),
        size=sum(file.st_size for file in files),
        age_s=max(0.0, time.time() - max((file.st_mtime for file in files), default=0.0)),
        best=best,
        latest=latest,
        verified=verify,
        damage=checkpoint.damage() if verify else None,
    )


def render_checkpoints(rows: Sequence[CheckpointRow]) -> Table:
    """Returns the rows as a table."""
    table = Table("checkpoint", "update", "epoch", "size", "age", "", "files", box=None, padding=(0, 3, 0, 0))
    for row in rows:
        marks = " ".join(name for name, is_so in (("best", row.best), ("latest", row.latest)) if is_so)
        files = (row.damage or "verified") if row.verified else "not read"
        epoch = "" if row.epoch is None else f"{row.epoch:.2f}"
        table.add_row(row.name, str(row.update), epoch, size_text(row.size), duration_text(row.age_s), marks, files)
    return table

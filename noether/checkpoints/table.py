"""`noether checkpoints`: list a run's checkpoints, verify them, remove old ones. No torch here."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from rich.table import Table

from noether.checkpoints.format import (
    CheckpointFolder,
    DamagedCheckpoint,
    choose_to_prune,
    list_checkpoints,
    newest_intact,
    ranked,
)
from noether.checkpoints.run_settings import run_settings
from noether.common.atomic_write import UNFENCED, refusals_told
from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError
from noether.common.numbers import duration_text, size_text
from noether.common.suggest import number_of
from noether.runs.folder import RunFolder, existing_run
from noether.runs.records import is_count, number


@dataclass(frozen=True)
class CheckpointRow:
    """One checkpoint in the table. `metric` is the selection metric; `size` is in bytes, and `age_s` in seconds.

    damage: what is wrong; None if every file is intact, or if the files were not verified (`verified` is False).
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
    """Return a row for each checkpoint of a run, oldest first. With `verify=True`, read every byte to detect damage."""
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
        checkpoint.path.name, checkpoint.updates,
        epoch=checkpoint.updates / per_epoch if is_count(per_epoch) and per_epoch else None,
        metric=number(meta, "metric"), size=sum(file.st_size for file in files),
        age_s=max(0.0, time.time() - max((file.st_mtime for file in files), default=0.0)),
        best=best, latest=latest, verified=verify, damage=checkpoint.damage() if verify else None,
    )  # fmt: skip


def render_checkpoints(rows: Sequence[CheckpointRow]) -> Table:
    """Return the rows as a table."""
    table = Table("checkpoint", "update", "epoch", "size", "age", "", "files", box=None, padding=(0, 3, 0, 0))
    for row in rows:
        marks = " ".join(name for name, is_so in (("best", row.best), ("latest", row.latest)) if is_so)
        files = (row.damage or "verified") if row.verified else "not read"
        epoch = "" if row.epoch is None else f"{row.epoch:.2f}"
        table.add_row(row.name, str(row.update), epoch, size_text(row.size), duration_text(row.age_s), marks, files)
    return table


def checkpoints_here(run: str, *, verify: bool, prune: bool, keep: str | None, yes: bool, as_json: bool) -> int:
    """List a run's checkpoints, verify them, or remove old ones; return the exit code.

    The exit code is FAILED if a damaged checkpoint remains. RequestError: there is no such run, or flags are wrong.
    """
    folder = existing_run(run)
    if (keep is not None or yes) and not prune:
        raise RequestError("prune-flags-alone", "--keep and --yes need --prune",
                           seen=f"checkpoints {run} " + (f"--keep {keep}" if keep is not None else "--yes"),
                           fix=f"noether checkpoints {run} --prune --keep {keep or 1}")  # fmt: skip
    asked = None if keep is None else number_of("keep", keep, int, 1, 10**9, "--keep 1")
    rows = describe_checkpoints(folder, verify=verify or prune)
    doomed: list[CheckpointRow] = []
    if prune:
        newest = newest_intact(folder.checkpoints, whole=False)
        kept = asked or run_settings(folder, newest)[1].trainer.keep_checkpoints
        damaged = [row.name for row in rows if row.damage]
        chosen = choose_to_prune(folder.checkpoints, kept, lambda one: one.path.name in damaged)
        doomed = [row for row in rows if row.name in [one.path.name for one in chosen]]
        with refusals_told(folder.path, elsewhere=f"remove them where {folder.checkpoints} can be written"):
            for row in doomed if yes else ():
                UNFENCED.drop(folder.checkpoints / row.name)
    names = [row.name for row in doomed]
    if as_json:
        gone = {"removed" if yes else "would_remove": names} if prune else {}
        print(json.dumps({"run": str(folder.path), "checkpoints": [asdict(row) for row in rows], **gone}, indent=2))
    else:
        console = Console(None, speaks=True)
        console.say(render_checkpoints(rows) if rows else f"{folder.path} has no checkpoint yet")
        told = f"{', '.join(names) or 'nothing'} ({size_text(sum(row.size for row in doomed))})"
        if prune:
            console.say(f"\nremoved {told}" if yes else f"\nwould remove {told}; nothing is removed without --yes")
    return ExitCode.FAILED if any(row.damage for row in rows if row not in doomed) else ExitCode.DONE

"""What `noether checkpoints` does: list a run's checkpoints, read them back, remove old ones. No torch here."""

import json
from dataclasses import asdict

from noether.checkpoints.format import newest_intact
from noether.checkpoints.own_settings import own_settings
from noether.checkpoints.pruning import choose_to_prune
from noether.checkpoints.table import CheckpointRow, describe_checkpoints, render_checkpoints
from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError
from noether.common.flags import number_of
from noether.common.numbers import size_text
from noether.common.refused_disk import refusals_told
from noether.common.whole_file import UNFENCED
from noether.runs.folder import RunFolder, existing_run


def checkpoints_here(run: str, *, verify: bool, prune: bool, keep: str | None, yes: bool, as_json: bool) -> int:
    """Lists a run's checkpoints, reads them back, or removes old ones.

    Returns:
        ExitCode.FAILED where a checkpoint that was read is damaged and stays.

    Raises:
        RequestError: where there is no such run, or the words contradict each other.
    """
    folder = existing_run(run)
    if (keep is not None or yes) and not prune:
        raise RequestError(
            "prune-flags-alone",
            "--keep and --yes need --prune",
            seen=f"checkpoints {run} " + (f"--keep {keep}" if keep is not None else "--yes"),
            fix=f"noether checkpoints {run} --prune --keep {keep or 1}",
        )
    asked = None if keep is None else number_of("keep", keep, int, 1, 10**9, "--keep 1")
    rows = describe_checkpoints(folder, verify=verify or prune)
    doomed: list[CheckpointRow] = []
    if prune:
        newest = newest_intact(folder.checkpoints, whole=False)
        kept = asked or own_settings(folder, newest)[1].trainer.keep_checkpoints
        damaged = [row.name for row in rows if row.damage]
        chosen = choose_to_prune(folder.checkpoints, kept, lambda one: one.path.name in damaged)
        names = [one.path.name for one in chosen]
        doomed = [row for row in rows if row.name in names]
        with refusals_told(folder.path, elsewhere=f"remove them where {folder.checkpoints} can be written"):
            for row in doomed if yes else ():
                UNFENCED.drop(folder.checkpoints / row.name)
    left = [row for row in rows if row not in doomed]
    if as_json:
        gone = {"removed" if yes else "would_remove": [row.name for row in doomed]} if prune else {}
        print(json.dumps({"run": str(folder.path), "checkpoints": [asdict(row) for row in rows], **gone}, indent=2))
    else:
        _show_checkpoints(folder, rows, doomed if prune else None, yes)
    return ExitCode.FAILED if any(row.damage for row in left) else ExitCode.DONE


def _show_checkpoints(
    folder: RunFolder, rows: list[CheckpointRow], doomed: list[CheckpointRow] | None, done: bool
) -> None:
    console = Console(None, speaks=True)
    console.say(render_checkpoints(rows) if rows else f"{folder.path} has no checkpoint yet")
    if doomed is None:
        return
    names = ", ".join(row.name for row in doomed) or "nothing"
    room = size_text(sum(row.size for row in doomed))
    if done:
        console.say(f"\nremoved {names} ({room})")
    else:
        console.say(f"\nwould remove {names} ({room}); nothing is removed without --yes")

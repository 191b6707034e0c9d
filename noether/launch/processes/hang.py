"""Finds the rank that the others wait for in vain, from where each rank is when they time out."""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from noether.config.distributed import DistributedConfig
from noether.launch.processes.context import WorkerReport
from noether.launch.processes.rank_state import listed


def name_missing(
    waited: Iterable[WorkerReport], doing: Mapping[int, WorkerReport], settings: DistributedConfig
) -> WorkerReport | None:
    """Return the report of the rank that the others waited for, or None if every rank was there.

    A rank is missing where it has entered fewer collectives than those that waited, is in none at all, or is stopped.
    Ranks that wait in the same one are those whose own time is not over yet. `waited` are the reports of those whose
    collective took too long, at least one; `doing` is what ranks do that have not reported.
    """
    waited = sorted(waited, key=lambda report: report.position.entered)
    first = waited[-1]
    there = first.position
    missing = [
        entry
        for _, entry in sorted(doing.items())
        if entry.kind == "stopped" or not entry.position.collective or entry.position.entered < there.entered
    ]
    if not missing:
        return None
    culprit, *others = missing
    also = f", nor did rank {listed(entry.rank for entry in others)}" if others else ""
    lines = [
        f"did not come to {there if there.collective else 'a collective ' + there.when}{also}",
        f"  waited    rank {listed(report.rank for report in waited)}{_how_long(first.waited_s, settings)}",
        *(f"  rank {entry.rank:<4} {entry.message}" for entry in missing),
    ]
    return replace(culprit, kind="hung", message="\n".join(lines), traceback=own_frames(culprit.traceback))


def own_frames(stack: str) -> str:
    """Return the frames of the thread that is the rank's own, without those that start it, of faulthandler's text."""
    thread = stack.rpartition("Current thread")[2]
    lines = thread.partition("\n\n")[0].splitlines()[1:]
    count = next((number for number, line in enumerate(lines) if line.endswith(" in call_target")), len(lines))
    return "\n".join(["Python stack, the innermost call first:", *lines[:count]]) if lines else ""


def _how_long(waited_s: float, settings: DistributedConfig) -> str:
    if not waited_s:
        return ""
    setting = "timeout_s" if abs(waited_s - settings.timeout_s) < 0.01 else "init_timeout_s"
    return f", for {waited_s:g} s (distributed.{setting})"

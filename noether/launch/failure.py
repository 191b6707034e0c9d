"""Which rank failed first, and what does the user see of it: told from its echoes in the other ranks."""

import os
import re
import signal
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from noether.errors import ExitCode
from noether.launch.placement import WorkerContext, WorkerReport
from noether.launch.worker import failing_code

# A silent death is seen up to this long after the ranks it broke have reported their broken connections.
SILENT_LAG_S = 1.0


def first_failure(reports: Iterable[WorkerReport]) -> WorkerReport | None:
    """Return the failure that the others follow from, or None when no rank failed.

    It is the earliest, with one correction: a rank that died without a word is only seen to be dead, after
    the ranks it left in a collective have already complained. A silent death within a second of the earliest
    report goes before it. Not SIGABRT: torch aborts a rank whose peer is gone.
    """
    failures = sorted((report for report in reports if is_failure(report)), key=lambda report: report.time)
    if not failures:
        return None
    abort = 128 + signal.SIGABRT
    for report in failures:
        silent = report.kind == "died" and report.exit_code != abort
        if silent and report.time - failures[0].time <= SILENT_LAG_S:
            return report
    return failures[0]


def is_failure(report: WorkerReport) -> bool:
    """Whether a rank ended in another way than by returning 0 (done) or 75 (checkpointed)."""
    return report.kind != "finished" or report.exit_code not in (ExitCode.DONE, ExitCode.CHECKPOINTED)


def run_exit_code(reports: Iterable[WorkerReport]) -> int:
    """Return 0 when all ranks are done, 75 when any stopped with all saved, else the first failure's code."""
    reports = list(reports)
    failure = first_failure(reports)
    if failure is not None:
        return failure.exit_code
    return max((report.exit_code for report in reports), default=int(ExitCode.DONE))


def death_report(
    context: WorkerContext, pid: int, exitcode: int, forwarded: Collection[int], seen: float
) -> WorkerReport:
    """Say how a rank ended that did not say so itself.

    Args:
        context: what the rank was told.
        pid: its process.
        exitcode: as multiprocessing gives it: minus the signal's number, or what the process exited with.
        forwarded: the signals this launcher passed on.
        seen: seconds since the epoch when the death was seen.
    """
    code = failing_code(exitcode)
    if exitcode < 0:
        code = 128 - exitcode
        name = signal.Signals(-exitcode).name if -exitcode in set(signal.Signals) else f"signal {-exitcode}"
        message = f"was killed by {name}"
        if -exitcode == signal.SIGKILL:
            message += " (often the out-of-memory killer)"
        elif -exitcode in forwarded:
            message = f"was ended by {name}, passed on to it before it was ready to stop at a boundary"
    else:
        message = f"left early, with exit code {exitcode} and no word to the launcher"
        if exitcode == 255:  # What multiprocessing says of a worker when nobody is left to wait for it.
            message += " (or its fork server was killed)"
    return WorkerReport(context.worker.rank, context.host, pid, seen, "died", message, "", code)


def describe_failure(failure: WorkerReport, others: Mapping[int, str], log_folder: Path, world_size: int = 2) -> str:
    """Return what the user sees of a run that failed: who, where, why, what the others did, and the logs."""
    who = f"rank {failure.rank} on {failure.host}"
    lines = []
    if failure.kind == "refused":
        lines.append(f"noether: {failure.message}")
        if world_size > 1:
            lines.append(f"  said by   {who}")
    else:
        verb = " failed:" if failure.kind == "failed" else ""
        lines.append(f"noether: {who}{verb} {failure.message}")
    if failure.kind == "died":
        lines += [f"  | {line}" for line in _log_end(log_folder / f"rank-{failure.rank}.log")]
    elif failure.traceback:
        lines.append(failure.traceback.rstrip())
    if others:
        lines.append(f"  others    {_grouped(others)}")
    lines.append(f"  logs      {log_folder}")
    return "\n".join(lines)


def as_phrase(report: WorkerReport) -> str:
    """Return what a rank did, to follow "rank 3:", in one line."""
    verb = "reported " if report.kind in ("failed", "refused") else ""
    message = report.message.partition("\n")[0]
    return verb + (message if len(message) <= 120 else message[:119] + "…")


def _grouped(phrases: Mapping[int, str]) -> str:
    """Return "rank 0: in f; ranks 2, 3: reported X", the ranks of one phrase together."""
    groups: dict[str, list[int]] = {}
    for rank, phrase in sorted(phrases.items()):
        groups.setdefault(phrase, []).append(rank)
    parts = []
    for phrase, ranks in groups.items():
        listed = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
        parts.append(f"rank{'s' if len(ranks) > 1 else ''} {listed}: {phrase}")
    return "; ".join(parts)


def _log_end(path: Path, lines: int = 20) -> list[str]:
    try:
        with open(path, "rb") as log:
            log.seek(max(0, os.path.getsize(path) - 8192))
            return log.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def where_in_stack(text: str) -> str:
    """Return "in all_reduce, called from step (train.py:88)" for a stack as faulthandler prints it."""
    thread = text.rpartition("Current thread")[2] or text
    thread = thread.partition("\n\n")[0]
    frames = re.findall(r'File "(.+)", line (\d+) in (.+)', thread)
    if not frames:
        return "running"
    inner = frames[0][2]
    for path, line, name in frames:
        if not re.search(r"/(site-packages|dist-packages|lib/python3[.\d]*)/", path):
            place = f"({os.path.basename(path)}:{line})"
            called = "" if name == inner else f"{inner}, called from "
            return f"in {called}{name} {place}"
    return f"in {inner}"

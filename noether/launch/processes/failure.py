"""Finds a run's first failure, which caused the failures of other ranks, and describes it to the user."""

import os
import re
import signal
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from noether.common.errors import ExitCode, shown, signal_code
from noether.common.numbers import first_of
from noether.common.safe_open import open_plain
from noether.config.distributed import DistributedConfig
from noether.launch.processes.context import RunInfo, WorkerContext, WorkerReport, listed, named_ranks
from noether.launch.processes.out_of_memory import no_memory_left
from noether.launch.processes.worker import failing_code, timed_out_after

# If a rank dies without a report, its death may be noticed up to this many seconds after the connections that it broke.
SILENT_LAG_S = 1.0
ABORTED = signal_code(signal.SIGABRT)
# The prefix of the files of NCCL's flight recorder; after it comes the rank.
RECORDER = "nccl-trace-rank-"


def first_failure(reports: Iterable[WorkerReport]) -> WorkerReport | None:
    """Return the failure that caused all others, or None if no rank failed.

    The cause is the earliest failure that is not a consequence of another failure, with two exceptions. If a rank dies
    without a report within a second of the first failure, its death is the cause, because other ranks report their
    broken connections before it is noticed. SIGABRT is excluded, because torch aborts a rank whose peer is gone. If
    every failure is a consequence and none is a timeout, the cause is a rank that ended before them without failing.
    """
    reports = list(reports)
    failures = sorted((report for report in reports if is_failure(report)), key=lambda report: report.time)
    if not failures:
        return None
    for report in failures:
        silent = report.kind == "died" and report.exit_code != ABORTED
        if silent and report.time - failures[0].time <= SILENT_LAG_S:
            return report
    causes = [report for report in failures if not is_consequence(report)]
    # A rank that aborts outside a collective has not lost a peer. It is a cause: its peers have lost this rank.
    causes += [one for one in failures if one.kind == "died" and not (one.position.collective or one.follows)]
    if causes:
        return causes[0]
    early = [r for r in reports if not is_failure(r) and r.time <= failures[0].time + SILENT_LAG_S]
    if early and not any(map(is_timeout, failures)):
        left = min(early, key=lambda report: report.time)
        message = f"left early, with exit code {left.exit_code}, while other ranks needed it"
        return replace(left, kind="left", message=message, exit_code=left.exit_code or failures[0].exit_code)
    return failures[0]


def is_timeout(report: WorkerReport) -> bool:
    """Return whether a rank failed because a collective timed out; the cause is then a rank that did not join."""
    return report.follows == "timed-out"


def is_consequence(report: WorkerReport) -> bool:
    """Return whether a rank ended because another rank had ended. torch aborts a rank that has lost a peer."""
    return report.exit_code == ABORTED if report.kind == "died" else report.follows != ""


def is_failure(report: WorkerReport) -> bool:
    """Return whether a rank ended in any other way than by returning 0 (done) or 75 (checkpointed)."""
    return report.kind != "finished" or report.exit_code not in (ExitCode.DONE, ExitCode.CHECKPOINTED)


def run_exit_code(reports: Iterable[WorkerReport]) -> int:
    """Return the exit code of the first failure. If no rank failed, return 75 if any rank returned 75, else 0."""
    reports = list(reports)
    failure = first_failure(reports)
    if failure is not None:
        return failure.exit_code
    return max((report.exit_code for report in reports), default=int(ExitCode.DONE))


def death_report(
    context: WorkerContext, pid: int, exitcode: int, forwarded: Collection[int], seen: float, no_memory: bool = False
) -> WorkerReport:
    """Return a report for a rank that died without writing one.

    `exitcode`: the process's exit code, or minus a signal's number. `forwarded`: the signals that this parent process
    forwarded. `seen`: when the death was noticed (epoch time). `no_memory`: whether lack of memory was the cause.
    """
    code = failing_code(exitcode)
    if context.run_info.is_script and exitcode in (ExitCode.DONE, ExitCode.CHECKPOINTED):
        return WorkerReport(context.worker.rank, context.host, "finished", "left by os._exit", exitcode, pid, seen)
    if no_memory:
        error = no_memory_left()
        code, message = signal_code(signal.SIGKILL), f"is gone: {shown(str(error), error.code)}"
    elif exitcode < 0:
        code = signal_code(-exitcode)
        name = signal.Signals(-exitcode).name if -exitcode in set(signal.Signals) else f"signal {-exitcode}"
        message = f"was killed by {name}"
        if -exitcode == signal.SIGKILL:
            message += " (the kernel reports no kill for lack of memory)"
        elif -exitcode in forwarded:
            message = f"was ended by {name}, forwarded before it had a handler"
    else:
        message = f"left early, with exit code {exitcode} and without a report to its parent process"
        if exitcode == 255:  # multiprocessing reports this if the worker's parent is gone.
            message += " (or its fork server was killed)"
    return WorkerReport(context.worker.rank, context.host, "died", message, code, pid=pid, time=seen)


def describe_failure(
    failure: WorkerReport,
    others: Mapping[int, str],
    run_info: RunInfo,
    world_size: int = 2,
    recordings: Sequence[Path] = (),
) -> str:
    """Describe a failed run: the rank that failed, the place and reason, what other ranks did, and the log folder."""
    verb = " failed:" if failure.kind == "failed" else ""
    lines = [f"noether: {failure.who}{verb} {failure.message}"]
    if failure.kind == "refused":
        lines = [f"noether: {shown(str(failure.refusal), failure.code)}"]
        lines += [f"  source    {failure.who}"] if world_size > 1 else []
    if failure.kind == "died":
        lines += [f"  | {line}" for line in _log_end(run_info.log_folder / f"rank-{failure.rank}.log")]
    elif failure.traceback:
        lines.append(failure.traceback.rstrip())
    if failure.position.update and failure.kind in ("failed", "left", "died", "refused"):
        lines.append(f"  when      {failure.position}")
    if others:
        lines.append(f"  others    {_grouped(others)}")
    if recordings:
        names = first_of([path.name for path in recordings], 8)
        lines.append(f"  recorded  {names}: torchfrtrace --prefix {RECORDER} {recordings[0].parent}")
    lines += [f"  logs      {run_info.log_folder}"] if run_info.logs_stay else []
    return "\n".join(lines)


def describe_briefly(failure: WorkerReport, own: Iterable[int], error_file: Path | None) -> str:
    """Return the text that a parent process without rank 0 prints: one line, as rank 0's parent prints the rest.

    `own`: this parent's ranks. `error_file`: the file with the report of an own rank; if None, show the full message.
    """
    is_own = failure.rank in own
    whole = is_own and error_file is None
    message = shown(str(failure.refusal), failure.code) if whole else failure.message.partition("\n")[0]
    verb = " failed:" if failure.kind in ("failed", "refused") else ""
    if failure.kind == "refused" and not failure.position.update:
        verb = " refused the run:"
    who = f"{failure.who}{verb} {message}"
    if is_own:
        return f"noether: {who}" if whole else f"noether: {who} (in full: {error_file})"
    return f"noether: rank {listed(own)} ends with the run: {who}"


def as_phrase(report: WorkerReport) -> str:
    """Return one line about what the rank did, to be put after "rank 3:"."""
    if report.position.collective and is_consequence(report):
        waited = "timed out" if is_timeout(report) else "lost a peer"
        return f"{waited} in {report.position}"
    verb = "reported " if report.kind in ("failed", "refused") else ""
    message = report.message.partition("\n")[0]
    return verb + (message if len(message) <= 120 else message[:119] + "…")


def _grouped(phrases: Mapping[int, str]) -> str:
    """Return a text in which ranks with the same phrase share an entry: "rank 0: in f; ranks 2, 3: reported X"."""
    groups: dict[str, list[int]] = {}
    for rank, phrase in sorted(phrases.items()):
        groups.setdefault(phrase, []).append(rank)
    return "; ".join(f"{named_ranks(ranks, most=8)}: {phrase}" for phrase, ranks in groups.items())


def watchdog_ended(report: WorkerReport, log_folder: Path, since: float) -> WorkerReport:
    """Return the rank's report; if NCCL's watchdog aborted the rank, change the report into that of a timeout.

    The rank's log shows the watchdog's timeout. Rank 0 has no log, but a flight recorder file written after `since`.
    """
    if report.kind != "died" or report.exit_code != ABORTED:
        return report
    waited_s = timed_out_after("\n".join(_log_end(log_folder / f"rank-{report.rank}.log", 200)))
    if waited_s is None and not recorded(log_folder, [report.rank], since):
        return report
    return replace(report, follows="timed-out", waited_s=waited_s or 0.0)


def recorded(log_folder: Path, ranks: Iterable[int], since: float) -> list[Path]:
    """Return the files that NCCL's flight recorder has written for `ranks` after the time `since`."""
    paths = [log_folder / f"{RECORDER}{rank}" for rank in sorted(ranks)]
    return [path for path in paths if path.is_file() and path.stat().st_mtime >= since]


def _log_end(path: Path, lines: int = 20) -> list[str]:
    try:
        with open_plain(path) as log:
            log.seek(max(0, os.fstat(log.fileno()).st_size - 400 * lines))
            return log.read().decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


CALLER = " in call_target"  # In faulthandler's output, the end of the line for the frame that called the rank's target.


def _own_thread(stack: str) -> str:
    return stack.rpartition("Current thread")[2].partition("\n\n")[0]


def where_in_stack(text: str) -> str:
    """Return "in all_reduce, called from step (train.py:88)" from a stack that faulthandler printed."""
    frames = re.findall(r'File "(.+)", line (\d+) in (.+)', _own_thread(text))
    if not frames:
        return "running"
    inner = frames[0][2]
    for path, line, name in frames:
        if not re.search(r"/(site-packages|dist-packages|lib/python3[.\d]*)/", path):
            place = f"({os.path.basename(path)}:{line})"
            called = "" if name == inner else f"{inner}, called from "
            return f"in {called}{name} {place}"
    return f"in {inner}"


def name_missing(
    waited: Iterable[WorkerReport], doing: Mapping[int, WorkerReport], settings: DistributedConfig
) -> WorkerReport | None:
    """Return a report of the rank for which other ranks waited, or None if no rank was missing.

    A rank is missing if it has entered fewer collectives than the ranks that waited, is in no collective, or is
    stopped. A rank that still waits in the same collective is not missing. `waited`: the reports, at least one, of
    ranks whose collective timed out. `doing`: for each rank that has not reported, what it is doing.
    """
    waited = sorted(waited, key=lambda report: report.position.entered)
    first = waited[-1]
    there = first.position
    queued = not there.collective  # The collective was queued on the GPU, and the host continued.
    missing = [
        entry
        for _, entry in sorted(doing.items())
        if entry.kind == "stopped"
        or entry.position.entered < there.entered
        or not (entry.position.collective or queued)
    ]
    if not missing:
        return None
    culprit, *others = missing
    if queued:
        there = replace(there, update=culprit.position.update)
    also = f", nor did rank {listed(entry.rank for entry in others)}" if others else ""
    lines = [
        f"did not reach {there if there.collective else 'a collective ' + there.when}{also}",
        f"  waited    rank {listed(report.rank for report in waited)}{_how_long(first.waited_s, settings)}",
        *(f"  rank {entry.rank:<4} {entry.message}" for entry in missing),
    ]
    return replace(culprit, kind="hung", message="\n".join(lines), traceback=own_frames(culprit.traceback))


def own_frames(stack: str) -> str:
    """Return the current thread's frames from faulthandler's text, without the frames that called the target."""
    lines = _own_thread(stack).splitlines()[1:]
    count = next((number for number, line in enumerate(lines) if line.endswith(CALLER)), len(lines))
    return "\n".join(["Python stack, the innermost call first:", *lines[:count]]) if lines else ""


def _how_long(waited_s: float, settings: DistributedConfig) -> str:
    if not waited_s:
        return ""
    setting = "timeout_s" if abs(waited_s - settings.timeout_s) < 0.01 else "init_timeout_s"
    return f", for {waited_s:g} s (distributed.{setting})"

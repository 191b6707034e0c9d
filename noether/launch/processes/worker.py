"""Runs a worker's target: first sets up session, signals, log and environment, and finally reports how it ended."""

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import logging
import operator
import os
import pickle
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from itertools import dropwhile
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

from noether.common.atomic_write import write_json
from noether.common.container import fix_for_container
from noether.common.errors import (
    EndedByAnother,
    ExitCode,
    InterruptedStartError,
    NoetherError,
    RanksLate,
    RequestError,
    signal_code,
)
from noether.common.processes import STOP_SIGNALS
from noether.common.safe_open import open_to_append
from noether.launch.detect.limits import most_processes, refused_processes, too_few_processes
from noether.launch.processes.context import (
    REPORTED_WORDS,
    Consequence,
    ParentLink,
    ReportKind,
    WorkerContext,
    WorkerReport,
    read_position,
)
from noether.launch.processes.death_signal import die_with_parent
from noether.launch.processes.out_of_memory import killed_for_memory, no_memory_left

# These constants are from <malloc.h>.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_LARGEST_IN_HEAP = 1 << 30
_GROWTH = 64 << 20


def keep_freed_memory(environ: Mapping[str, str] = os.environ) -> bool:
    """Make glibc keep the memory that this process frees; return whether glibc accepts this.

    An update on the CPU allocates memory for its activations, and frees it. By default glibc returns this memory to the
    kernel, which must clear every page for the next update. That takes an eighth of the default model's time. With this
    setting, the process keeps the memory of its largest update, and uses it again.

    Nothing is changed if the user has configured memory allocation (GLIBC_TUNABLES, MALLOC_…, another allocator in
    LD_PRELOAD), or if the C library is not glibc.
    """
    said = any(name.startswith("MALLOC_") for name in environ)
    if said or "malloc" in environ.get("GLIBC_TUNABLES", "") or "malloc" in environ.get("LD_PRELOAD", ""):
        return False
    try:
        library = ctypes.CDLL(None)
        set_option = library.mallopt
        library.gnu_get_libc_version  # noqa: B018 - raises if the C library is not glibc
    except (OSError, AttributeError):
        return False
    # As soon as one option is set, glibc no longer adjusts the others, so all three are set.
    return bool(
        set_option(_MMAP_THRESHOLD, _LARGEST_IN_HEAP)
        and set_option(_TRIM_THRESHOLD, -1)
        and set_option(_TOP_PAD, _GROWTH)
    )


# gloo, NCCL and torch's store have no error codes, so these patterns match their messages. Those of gloo and the store
# were seen in torch 2.13; those of NCCL and its watchdog are from the sources. They only help to choose among reports.
_TIMED_OUT = re.compile(r"Timed out waiting|timed out after|Timeout\(ms\)=|[Ww]atchdog caught collective")
_PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|Socket Timeout|"
    r"remote process exited|ncclRemoteError|ncclSystemError|[Cc]ommunicator was aborted|"
    r"failed to (send|recv)|Failed to (send|recv)|Connection was likely closed|Broken connection"
)
# gloo: "Timed out waiting 5000ms for recv operation to complete"; NCCL's watchdog: "Timeout(ms)=5000".
_WAITED = re.compile(r"(\d+) ?ms|Timeout\(ms\)=(\d+)")


def consequence_of(error: BaseException) -> tuple[Consequence, float]:
    """Return what an exception shows about the rank's peers, and how many seconds the rank waited (0: unknown)."""
    if isinstance(error, RanksLate):
        return "timed-out", error.limit_s
    if not isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] not in ("builtins", "torch"):
        return "", 0.0  # This is an exception class of the user's.
    waited_s = timed_out_after(str(error))
    if waited_s is not None:
        return "timed-out", waited_s
    return ("lost-peer" if _PEER_GONE.search(str(error)) else ""), 0.0


def timed_out_after(text: str) -> float | None:
    """Return the seconds in a collective's timeout message, 0 if it gives none; None if `text` is no such message."""
    began = _TIMED_OUT.search(text)
    if began is None:
        return None
    found = _WAITED.search(text, began.start())
    return int(found[1] or found[2]) / 1000 if found else 0.0


SPIN_COUNT = "10000"
"""How often a waiting thread spins: for tens of microseconds, much less than by libgomp's default. On two cores, an
update takes 0.35 times as long beside two busy processes, and 1.07 times as long alone (benchmarks/openmp_spin.py)."""


def openmp_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to set before libgomp is loaded. If the user has set how threads wait, return {}."""
    said = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    return {} if any(name in environ for name in said) else {"GOMP_SPINCOUNT": SPIN_COUNT}


LAUNCH_FILES = (__file__, "launch/script.py", "<frozen runpy>", "runpy.py")
# The signal that requests a worker's stack. faulthandler answers it even if Python is stuck inside a collective.
STACK_SIGNAL = signal.SIGRTMIN + 7 if hasattr(signal, "SIGRTMIN") else None
# A report must fit into one write to an empty pipe, so that a rank that is killed while it reports cannot leave half a
# report in the pipe. The file beside the logs has the full text.
REPORT_CHARACTERS = 10_000


def worker_main(
    context: WorkerContext,
    target: str,
    packed_payload: bytes,
    *,
    environment: Mapping[str, str],
    reports: Connection,
    stacks: Connection,
    counters: Any,
    own_log: bool,
    stdin: Connection | None = None,
) -> NoReturn:
    """Run a worker from start to end, then exit by os._exit; never return.

    `counters`: shows the parent process what this rank is doing. With `own_log=True`, a rank above 0 writes to a log
    file. `stdin`: the stdin of the parent process, or None for a rank that does not read it.

    os._exit is used because torch can deadlock while the interpreter shuts down (pytorch #56297). Exit handlers cost
    time, so they run only for scripts; any other target must close what it has opened. Output is flushed.
    """
    die_with_parent()
    # With its own process group, the worker's whole tree can be ended, and Ctrl-C reaches only the parent process.
    with contextlib.suppress(OSError):
        os.setsid()
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    log_folder = context.run_info.log_folder
    if own_log and context.worker.rank > 0:
        write_to_log(log_folder / f"rank-{context.worker.rank}.log")
    faulthandler.enable()
    if STACK_SIGNAL is not None:
        faulthandler.register(STACK_SIGNAL, file=stacks.fileno(), all_threads=True)
    # The worker inherits the environment that the fork server had at its start, but needs its parent's current one.
    os.environ.clear()
    os.environ.update(environment)
    if stdin is not None:  # multiprocessing gives its processes no stdin.
        os.dup2(stdin.fileno(), 0)
        sys.stdin = open(0, closefd=False)  # noqa: SIM115
    if context.run_info.is_script:  # All ranks write to one console, so each writes whole lines.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)  # type: ignore[union-attr]
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(context.threads)  # The preloaded torch has read the fork server's OMP_NUM_THREADS.

    parent = ParentLink(reports, counters)
    report = replace(
        call_target(target, replace(context, parent=parent), packed_payload), position=read_position(counters)
    )
    flush_output()
    with contextlib.suppress(OSError):
        reports.send(shortened(report))
    if report.exit_code not in (ExitCode.DONE, ExitCode.CHECKPOINTED):
        write_error_file(report, log_folder)
    if context.run_info.is_script:  # This comes after the report, because exit handlers may wait for other ranks.
        run_exit_handlers()
    os._exit(report.exit_code)


def run_exit_handlers() -> None:
    """Wait for threads and call the registered exit handlers, as the interpreter does before it exits."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    flush_output()


def call_target(target: str, context: WorkerContext, packed_payload: bytes) -> WorkerReport:
    """Call `target(context, payload)` and report how it ended; no exception escapes, not even SystemExit."""
    started, refused, killed = time.time(), refused_processes(), killed_for_memory()
    if context.worker.device.kind == "cpu":
        keep_freed_memory()
    try:
        module, _, name = target.rpartition(".")
        function: Callable[[WorkerContext, Any], int] = getattr(importlib.import_module(module), name)
        exit_code = operator.index(function(context, pickle.loads(packed_payload)))
    except BaseException as error:
        # Libraries report a lack of memory in different words, if at all, so the kernel's count of kills is checked.
        cause: BaseException = error
        if isinstance(error, Exception) and not isinstance(error, NoetherError):
            if refused_processes() > refused:
                cause = too_few_processes(most_processes())
            elif killed_for_memory() > killed and not consequence_of(error)[0]:  # A killed peer's parent reports it.
                cause = no_memory_left()
        return failure_report(cause, context.worker.rank, context.host)
    message = f"ended with exit code {exit_code} after {time.time() - started:.1f} s"
    return _report(context.worker.rank, context.host, "finished", message, "", exit_code)


def failure_report(error: BaseException, rank: int, host: str) -> WorkerReport:
    """Return the report of a rank that raised `error` or was never started. sys.exit with any code is a failure."""
    if isinstance(error, InterruptedStartError):
        return _report(rank, host, "interrupted", str(error), "", error.exit_code)
    if isinstance(error, NoetherError):
        # The fix is adapted to this host's container now, because the process that prints it may run outside.
        typed = fix_for_container(error)
        said = typed if isinstance(typed, RequestError) else RequestError(error.code, str(error))
        report = _report(rank, host, "refused", said.summary, "", int(error.exit_code))
        report = replace(report, code=error.code, seen=said.seen, expected=said.expected, fix=said.fix)
        return replace(report, follows="lost-peer") if isinstance(error, EndedByAnother) else report
    if isinstance(error, KeyboardInterrupt):
        return _report(rank, host, "interrupted", "interrupted", "", signal_code(signal.SIGINT))
    own = error.__traceback__
    while own is not None and own.tb_frame.f_code.co_filename.endswith(LAUNCH_FILES):
        own = own.tb_next
    if own is not None or isinstance(error, SystemExit | SyntaxError):
        error.__traceback__ = own  # The traceback begins at the target, without the frames that called it.
    trace = "".join(traceback.format_exception(error))
    lines = traceback.format_exception_only(error)
    last = "".join(dropwhile(lambda line: line[0] == " ", lines)).strip()  # Drops the source lines of a SyntaxError.
    if isinstance(error, SystemExit):
        code, trace = error.code if isinstance(error.code, int) else 1, trace if own is not None else ""
        return _report(rank, host, "left", f"left early by sys.exit({error.code!r})", trace, failing_code(code))
    follows, waited_s = consequence_of(error)
    return replace(_report(rank, host, "failed", last, trace, ExitCode.FAILED), follows=follows, waited_s=waited_s)


def failing_code(code: int) -> int:
    """Return `code`, or 1 for a code that a scheduler would not read as a failure: 0, 75 or an invalid exit code."""
    return code if 0 < code < 256 and code != ExitCode.CHECKPOINTED else int(ExitCode.FAILED)


def _report(rank: int, host: str, kind: ReportKind, message: str, trace: str, exit_code: int) -> WorkerReport:
    exit_code = exit_code if 0 <= exit_code < 256 else int(ExitCode.FAILED)
    return WorkerReport(rank, host, kind, message, exit_code, pid=os.getpid(), traceback=trace)


def shortened(report: WorkerReport, characters: int = REPORT_CHARACTERS) -> WorkerReport:
    """Return the report; texts that are too long for one message are cut in the middle."""

    def cut(text: str, limit: int) -> str:
        if len(text) <= limit:
            return text
        return f"{text[: limit // 3]}\n… {len(text) - limit} characters left out …\n{text[-limit * 2 // 3 :]}"

    words: dict[str, Any] = {name: cut(getattr(report, name), characters // 4) for name in REPORTED_WORDS}
    return replace(report, **words, traceback=cut(report.traceback, characters))


def worker_environment(context: WorkerContext, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker: the parent's variables, and those that torch's own launcher sets.

    CUDA_VISIBLE_DEVICES is not changed. OMP_NUM_THREADS and TORCH_CPP_LOG_LEVEL are set unless the user has set them.
    """
    return {
        "OMP_NUM_THREADS": str(context.threads),
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # Otherwise torch's warnings of a lost peer, with C++ frames, hide a failure.
        **environ,
        "RANK": str(context.worker.rank),
        "LOCAL_RANK": str(context.worker.local_rank),
        "WORLD_SIZE": str(context.world_size),
        "LOCAL_WORLD_SIZE": str(context.local_world_size),
        "NODE_RANK": str(context.worker.node_rank),
        "MASTER_ADDR": context.endpoint.host,
        "MASTER_PORT": str(context.endpoint.port),
    }


@contextlib.contextmanager
def changed_environment(changes: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables of this process inside a block, then restore them."""
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def write_to_log(path: Path) -> None:
    """Make this process and its children append stdout and stderr to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    log = open_to_append(path)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[union-attr]


def flush_output() -> None:
    """Flush logging and stdio for the last time; ignore a stream that is already closed."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()


def error_file(log_folder: Path, rank: int | str) -> Path:
    """Return the path of a failed rank's report. For the rank "*", it is a pattern that matches every report."""
    return log_folder / f"rank-{rank}.error.json"


def write_error_file(report: WorkerReport, log_folder: Path) -> None:
    """Write a report beside the logs, atomically. Errors are ignored: a full disk must not hide the failure itself."""
    with contextlib.suppress(OSError):
        if log_folder.is_dir():  # If it is missing, the run was moved, and a new folder would look like a run.
            write_json(error_file(log_folder, report.rank), asdict(report))

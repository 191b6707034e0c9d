"""Starts workers from a parent process without torch; several workers come from a fork server with torch in memory."""

import contextlib
import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import pickle
import signal
import sys
import threading
import types
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool, ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from noether.common.atomic_write import refusals_told
from noether.common.errors import RequestError
from noether.common.processes import ProcessId, descendants, process_table
from noether.launch.detect.limits import raise_limits
from noether.launch.detect.placement import Placement
from noether.launch.processes.context import RunInfo, WorkerContext, new_counters
from noether.launch.processes.death_signal import NOT_FOR_SERVER, PARENT_VARIABLE, adopt_orphans
from noether.launch.processes.listener import RunPorts
from noether.launch.processes.worker import (
    changed_environment,
    error_file,
    openmp_defaults,
    worker_environment,
    worker_main,
)

# Given by name, because importing the module here would import torch into the parent process.
PRELOAD = "noether.launch.processes.preload"
START_METHODS = ("forkserver", "spawn")


@dataclass(frozen=True)
class RunningWorker:
    """A started worker, and the channels by which the parent process follows it.

    `reports` carries its WorkerMessages and one WorkerReport; `stacks` carries its Python stack when requested;
    `counters` hold its position. `ended` is a file descriptor that becomes readable when the process has ended.
    `spared`: children that the parent had before the run, which stay when the run's processes are ended.
    """

    context: WorkerContext
    process: BaseProcess
    reports: Connection
    stacks: Connection
    counters: Any
    ended: int
    spared: frozenset[ProcessId]

    @property
    def rank(self) -> int:
        """The rank of the worker."""
        return self.context.worker.rank

    @property
    def pid(self) -> int:
        """The process id, which is also the id of its process group and session."""
        assert self.process.pid is not None
        return self.process.pid


def start_workers(
    placement: Placement,
    target: str,
    payload: Any,
    run_info: RunInfo,
    ports: RunPorts,
    *,
    methods: tuple[str, ...] = (),
) -> list[RunningWorker]:
    """Start the workers of a placement, each calling `target(context, payload) -> exit code`.

    A host's only worker is forked from this process, which costs nothing and leaves a parent that sees how the worker
    ends, even if it is stopped or killed. Several workers come from a fork server with torch in memory. `methods`:
    start methods to try in order instead of these two; a spawned worker imports torch itself.

    Call it from the main thread, which must outlive the workers: their death signal follows the thread. The arguments
    are those of `run_placement`. The run's `log_folder` gets rank-N.log (stdout and stderr of the ranks above 0,
    appended) and rank-N.error.json of each rank that failed. The store's port is given to rank 0, and closed here.

    RequestError: NOETHER_START_METHOD does not name a start method, or the logs cannot be written.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("start workers from the main thread: their death signal follows the thread that starts them")
    methods = methods or (start_methods(os.environ) if len(placement.workers) > 1 else ("fork",))
    packed = pickle.dumps(payload)
    log_folder = make_log_folder(run_info)
    with refusals_told(log_folder):
        for earlier in log_folder.glob(error_file(log_folder, "*").name):  # Also those of other hosts' ranks.
            earlier.unlink(missing_ok=True)
    contexts = worker_contexts(placement, ports, run_info)
    adopt_orphans(True)
    running = _start_by_any(methods, contexts, (target, packed))
    if ports.store is not None:
        ports.store.close()  # Rank 0 must have the only copy, so that a dead store's port refuses connections.
    return running


def start_methods(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the start methods to try, in order. RequestError: NOETHER_START_METHOD does not name one."""
    wanted = environ.get("NOETHER_START_METHOD") or START_METHODS[0]
    if wanted in START_METHODS:
        return START_METHODS[START_METHODS.index(wanted) :]
    raise RequestError("unknown-start-method", f"NOETHER_START_METHOD={wanted} is not a way to start workers",
                       seen=f"NOETHER_START_METHOD={wanted}", expected=" or ".join(START_METHODS),
                       fix="unset NOETHER_START_METHOD")  # fmt: skip


def warm_up() -> None:
    """Start the fork server now, so that it imports torch while this process does other work.

    The call is optional: otherwise `start_workers` starts the server. A process has only one fork server: modules that
    another library wanted to preload are left out, and a server that already runs is used unchanged.
    """
    raise_limits()
    if start_methods(os.environ)[0] != "forkserver":
        return
    multiprocessing.set_forkserver_preload([PRELOAD])
    multiprocessing.resource_tracker.ensure_running()  # This also changes the signal mask.
    # The server inherits the mask, so that a Ctrl-C in its first moments does not end it with a traceback.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_SERVER)
    try:
        with changed_environment(server_environment(os.environ, os.getpid())):
            multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def make_log_folder(run_info: RunInfo) -> Path:
    """Create the folder of the ranks' logs, except for a script, which has none. RequestError: it cannot be created."""
    with refusals_told(run_info.log_folder):
        if not run_info.is_script:
            run_info.log_folder.mkdir(parents=True, exist_ok=True)
    return run_info.log_folder


def call_with_torch(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a process of the fork server, which has torch in memory; raise its exception here."""
    if start_methods(os.environ)[0] != "forkserver":
        return function(*arguments)
    warm_up()
    server = multiprocessing.get_context("forkserver")
    # A process that dies raises nothing here; the first rank dies in the same way, and its death is reported.
    with contextlib.suppress(BrokenProcessPool), _hidden_main(), ProcessPoolExecutor(1, server) as pool:
        called = pool.submit(function, *arguments)
        called.exception()
        pool.submit(os._exit, 0)  # Threads of the process would keep it alive, and the pool would wait.
        called.result()


def server_environment(environ: Mapping[str, str], parent_pid: int) -> dict[str, str]:
    """Return the variables that the fork server has in addition to its parent's; workers do not inherit them."""
    root = str(Path(__file__).parents[3])
    return {
        # The workers' libgomp and torch read these when the server loads torch, not when they are forked.
        **openmp_defaults(environ),
        "TORCH_CPP_LOG_LEVEL": environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        PARENT_VARIABLE: str(parent_pid),
        # The server imports the preload before it receives sys.path.
        "PYTHONPATH": os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH")])),
        # Threads and CUDA contexts do not survive a fork. OpenBLAS, which comes with numpy, starts threads
        # when loaded unless limited to one; `torch.cuda.is_available()`, which an import may call, queries
        # the CUDA driver unless set to query NVML.
        "OPENBLAS_NUM_THREADS": environ.get("OPENBLAS_NUM_THREADS", "1"),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def worker_contexts(placement: Placement, ports: RunPorts, run_info: RunInfo) -> list[WorkerContext]:
    """Return each worker's context."""
    # MASTER_PORT keeps its usual meaning: the port at which the run can be reached.
    alone = len(placement.workers) == placement.world_size
    endpoint = ports.store.endpoint if ports.store is not None and alone else placement.endpoint
    return [
        WorkerContext(
            worker, placement.world_size, placement.local_world_size, placement.host, endpoint,
            restarts=placement.restarts, threads=placement.cpus.threads if placement.cpus is not None else 1,
            listen_socket=ports.store.socket if ports.store and worker.rank == 0 else None,
            listener_port=ports.listener_port, run_info=run_info,
        )
        for worker in placement.workers
    ]  # fmt: skip


def _start_by_any(
    methods: tuple[str, ...], contexts: list[WorkerContext], work: tuple[str, bytes]
) -> list[RunningWorker]:
    *others, last = methods
    for method in others:
        try:
            return _start_all(method, contexts, work)
        except (OSError, EOFError) as error:
            print(f"noether: {method} failed ({error!r}); workers are started by {last}", file=sys.stderr)
    return _start_all(last, contexts, work)


def _start_all(method: str, contexts: list[WorkerContext], work: tuple[str, bytes]) -> list[RunningWorker]:
    if method == "forkserver":
        warm_up()
    if method != "fork":
        multiprocessing.resource_tracker.ensure_running()
    # These are listed while no worker exists, so that the fork server and the tracker stay for the next run.
    spared = frozenset(entry.identity for entry in descendants(process_table(), os.getpid()))
    running: list[RunningWorker] = []
    try:
        with _hidden_main():
            for context in contexts:
                running.append(_start_one(method, context, work, spared))
    except BaseException:
        for worker in running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker.pid, signal.SIGKILL)
        raise
    return running


def _start_one(
    method: str, context: WorkerContext, work: tuple[str, bytes], spared: frozenset[ProcessId]
) -> RunningWorker:
    multiprocess = multiprocessing.get_context(method)
    reports, reports_writer = multiprocess.Pipe()  # The parent process answers when all ranks have come.
    stacks, stacks_writer = multiprocess.Pipe(duplex=False)
    counters, is_script = new_counters(multiprocess), context.run_info.is_script
    stdin = Connection(os.dup(0), writable=False) if is_script and context.worker.rank == 0 else None
    process: BaseProcess = multiprocess.Process(  # type: ignore[attr-defined]
        target=worker_main,
        name=f"rank-{context.worker.rank}",
        args=(context, *work),
        kwargs={
            "environment": worker_environment(context, os.environ),
            "reports": reports_writer,
            "stacks": stacks_writer,
            "counters": counters,
            "own_log": method != "fork" and not is_script,
            "stdin": stdin,
        },
    )
    process.start()
    reports_writer.close()
    stacks_writer.close()
    if stdin is not None:
        stdin.close()
    # If a worker is this process's child, its sentinel is a pipe that its own children inherit, so a dead worker
    # with live loader processes would look alive. The fork server writes to its workers' sentinels itself.
    ended = process.sentinel
    if method != "forkserver" and hasattr(os, "pidfd_open") and process.pid is not None:
        ended = os.pidfd_open(process.pid)
    return RunningWorker(context, process, reports, stacks, counters, ended=ended, spared=spared)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide `__main__` from multiprocessing, which would run it again in every worker.

    Every worker would repeat the console script's imports, and a script without a guard would launch itself again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main

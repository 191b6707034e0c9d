"""Starts workers from a parent process that has not imported torch; a fork server with torch starts several workers."""

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

# The module is given by name, because importing it here would import torch into the parent process.
PRELOAD = "noether.launch.processes.preload"
START_METHODS = ("forkserver", "spawn")


@dataclass(frozen=True)
class RunningWorker:
    """A started worker, and the channels by which the parent process follows it.

    `reports`: the connection for the worker's WorkerMessages and its WorkerReport. `stacks`: the connection for its
    Python stack, which it sends on request. `counters`: its position. `ended`: a file descriptor that becomes readable
    when the process has ended. `spared`: children that the parent had before the run; they are not ended with it.
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
        """The process id, which is also the id of the worker's process group and session."""
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

    If this process has one worker, it is forked from this process. This costs nothing, and this process sees how the
    worker ends, even if it is stopped or killed. Several workers are forked from a fork server with torch in memory.
    `methods`: start methods to try in order instead of the usual ones; a worker that is spawned imports torch itself.

    Call this from the main thread, which must outlive the workers: their death signal follows the thread. For the other
    arguments, see `run_placement`. The run's `log_folder` gets rank-N.log of each rank above 0 (stdout and stderr,
    appended), and rank-N.error.json of each rank that failed. Rank 0 gets the store's port; this process closes it.
    RequestError: NOETHER_START_METHOD does not name a start method, or the logs cannot be written.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("start workers from the main thread: their death signal follows the thread that starts them")
    methods = methods or (start_methods(os.environ) if len(placement.workers) > 1 else ("fork",))
    packed = pickle.dumps(payload)
    log_folder = make_log_folder(run_info)
    with refusals_told(log_folder):
        for earlier in log_folder.glob(error_file(log_folder, "*").name):  # This includes files of other hosts' ranks.
            earlier.unlink(missing_ok=True)
    contexts = worker_contexts(placement, ports, run_info)
    adopt_orphans(True)
    running = _start_by_any(methods, contexts, (target, packed))
    if ports.store is not None:
        ports.store.close()  # Rank 0 must have the only copy: once the store is dead, its port must refuse connections.
    return running


def start_methods(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the start methods to try, in order. RequestError: NOETHER_START_METHOD does not name a start method."""
    wanted = environ.get("NOETHER_START_METHOD") or START_METHODS[0]
    if wanted in START_METHODS:
        return START_METHODS[START_METHODS.index(wanted) :]
    raise RequestError("unknown-start-method", f"NOETHER_START_METHOD={wanted} is not a start method of workers",
                       seen=f"NOETHER_START_METHOD={wanted}", expected=" or ".join(START_METHODS),
                       fix="unset NOETHER_START_METHOD")  # fmt: skip


def warm_up() -> None:
    """Start the fork server now, so that it imports torch while this process does other work.

    This call is optional: without it, `start_workers` starts the server. A process has only one fork server, so the
    preload list of another library is replaced, and a server that already runs is used unchanged.
    """
    raise_limits()
    if start_methods(os.environ)[0] != "forkserver":
        return
    multiprocessing.set_forkserver_preload([PRELOAD])
    multiprocessing.resource_tracker.ensure_running()  # This call changes the signal mask too, so it comes first.
    # The server inherits the mask, so that a Ctrl-C while the server starts does not end it with a traceback.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, NOT_FOR_SERVER)
    try:
        with changed_environment(server_environment(os.environ, os.getpid())):
            multiprocessing.forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def make_log_folder(run_info: RunInfo) -> Path:
    """Create the ranks' log folder; a script's run has none. RequestError: the folder cannot be created."""
    with refusals_told(run_info.log_folder):
        if not run_info.is_script:
            run_info.log_folder.mkdir(parents=True, exist_ok=True)
    return run_info.log_folder


def call_with_torch(function: Callable[..., None], *arguments: Any) -> None:
    """Call a function in a process forked from the fork server, which has torch in memory; raise its exception here."""
    if start_methods(os.environ)[0] != "forkserver":
        return function(*arguments)
    warm_up()
    server = multiprocessing.get_context("forkserver")
    # If the process dies, nothing is raised here: the first rank will die in the same way, and that is reported.
    with contextlib.suppress(BrokenProcessPool), _hidden_main(), ProcessPoolExecutor(1, server) as pool:
        called = pool.submit(function, *arguments)
        called.exception()
        pool.submit(os._exit, 0)  # Otherwise threads of the process would keep it alive, and the pool would wait.
        called.result()


def server_environment(environ: Mapping[str, str], parent_pid: int) -> dict[str, str]:
    """Return the variables that only the fork server gets; workers get the parent process's variables."""
    root = str(Path(__file__).parents[3])
    return {
        # The workers' libgomp and torch read these when the server loads torch, not when they are forked.
        **openmp_defaults(environ),
        "TORCH_CPP_LOG_LEVEL": environ.get("TORCH_CPP_LOG_LEVEL", "ERROR"),
        PARENT_VARIABLE: str(parent_pid),
        # The server imports the module `preload` before it receives sys.path.
        "PYTHONPATH": os.pathsep.join(filter(None, [root, environ.get("PYTHONPATH")])),
        # Threads and CUDA contexts do not survive a fork. OpenBLAS, which comes with numpy, starts threads
        # when loaded unless limited to one; `torch.cuda.is_available()`, which an import may call, queries
        # the CUDA driver unless set to query NVML.
        "OPENBLAS_NUM_THREADS": environ.get("OPENBLAS_NUM_THREADS", "1"),
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }


def worker_contexts(placement: Placement, ports: RunPorts, run_info: RunInfo) -> list[WorkerContext]:
    """Return the context of each worker."""
    # MASTER_PORT keeps its usual meaning, the port at which the run can be reached.
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
    # The children are listed while no worker exists, so that the fork server and the tracker survive for the next run.
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
    reports, reports_writer = multiprocess.Pipe()  # The parent process answers when all ranks are here.
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
    # The sentinel of a worker that is this process's child is a pipe that the worker's children inherit: a dead worker
    # with live loader processes would look alive. For its own workers, the fork server writes to the sentinels itself.
    ended = process.sentinel
    if method != "forkserver" and hasattr(os, "pidfd_open") and process.pid is not None:
        ended = os.pidfd_open(process.pid)
    return RunningWorker(context, process, reports, stacks, counters, ended=ended, spared=spared)


@contextlib.contextmanager
def _hidden_main() -> Iterator[None]:
    """Hide the module `__main__` from multiprocessing, which would run this module again in every worker.

    Every worker would repeat the imports of the console script, and a script without a guard would launch itself again.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main

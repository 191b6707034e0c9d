"""Make data once, in a locked folder, and share the work among processes that may crash."""

import errno
import fcntl
import multiprocessing
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from noether.common.atomic_write import remove
from noether.common.errors import RequestError
from noether.common.processes import process_id
from noether.launch.processes.death_signal import die_with_parent

STALE_SECONDS = 3600.0
Progress = Callable[[int, int], None]
"""Called with (samples made, samples to make)."""
Item = TypeVar("Item")


def silent(done: int, total: int) -> None:
    """Ignore the progress of work that nobody watches."""


def cache_root() -> Path:
    """Return the user's cache: $XDG_CACHE_HOME, or ~/.cache if that is unset or relative.

    (The XDG base directory specification ignores relative paths.) RequestError: there is no home folder.
    """
    variable = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return variable if variable.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:  # a container's user without an entry in /etc/passwd
        raise RequestError("no-data-folder", "there is no folder for the data that noether generates", seen=str(error),
                           expected="a home folder, or XDG_CACHE_HOME",
                           fix="export XDG_CACHE_HOME=/a/folder/you/can/write/to") from None  # fmt: skip


@contextmanager
def locked(folder: Path, leftovers: str = ".*.partial") -> Iterator[None]:
    """Create a folder, lock it while the block runs, and remove files that killed processes left there.

    The system releases the lock however this process ends. Some network file systems do not support locks. There, work
    continues without a lock: two processes may make the same file, each under its own temporary name, and the last
    rename wins with the same content.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
        for path in folder.glob(leftovers):
            with suppress(OSError):
                if _is_abandoned(path):
                    remove(path)
        yield


def partial_name(name: str) -> str:
    """Return the temporary name of a file or folder that this process writes."""
    return f".{name}.{socket.gethostname()}.{os.getpid()}-{secrets.token_hex(4)}.partial"


def _is_abandoned(path: Path) -> bool:
    """Return whether the file was left by a killed process of this host or, judging by its age, of another host.

    Holding the lock does not prove this: if locks do not work between hosts, another host may be writing the file.
    """
    before, _, process = path.name.removesuffix(".partial").rpartition(".")
    pid = process.partition("-")[0]
    if before.endswith(f".{socket.gethostname()}") and pid.isdecimal() and process_id(int(pid)) is None:
        return True
    return time.time() - path.stat().st_mtime > STALE_SECONDS


def surviving_map(
    function: Callable[[Item], Any], items: Iterable[Item], workers: int
) -> Iterator[tuple[Item, Any | RequestError]]:
    """Yield (item, result) in the order of completion; the result is a RequestError if the item was refused.

    Items are taken from the iterable only when a process is free. If a process dies (a VTK reader crashed, or the
    system ran out of memory), it is unknown which item it was working on: each item in progress is then retried
    alone, and the one that kills its process again is refused.

    workers: the number of processes. With 0, or in a daemon process (which cannot have children), none is started.
    """
    waiting = iter(items)
    if not workers or multiprocessing.current_process().daemon:
        for item in waiting:
            try:
                yield item, function(item)
            except RequestError as error:
                yield item, error
        return
    while suspects := (yield from _run(function, waiting, workers)):
        for item in suspects:
            if (yield from _run(function, iter([item]), 1)):
                died = RequestError(
                    "reading-process-died", "the process that prepared this case died",
                    seen="a reader of VTK crashed, or memory ran out and the system killed the process",
                    expected="complete files, and enough memory for one case in each process",
                    fix="--workers 1, or leave this case out",
                )  # fmt: skip
                yield item, died


def _run(
    function: Callable[[Item], Any], waiting: Iterator[Item], workers: int
) -> Generator[tuple[Item, Any | RequestError], None, list[Item]]:
    """Yield as `surviving_map` does until a process dies; return the items that were then in progress."""
    # Spawn, because the caller may have threads.
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=_end_with_parent)
    running: dict[Future[Any], Item] = {}
    taken: list[Item] = []
    try:
        while True:
            for item in islice(waiting, workers - len(running)):
                taken = [item]
                running[executor.submit(function, item)] = item
                taken = []
            if not running:
                return []
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    yield running[future], future.result()
                except RequestError as error:
                    yield running[future], error
                del running[future]
    except BrokenProcessPool:
        return [*running.values(), *taken]
    finally:
        executor.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """Make a worker end when its parent ends for any reason, because the pool alone would wait forever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    parent = multiprocessing.parent_process()
    if not die_with_parent() and parent is not None:  # The system is not Linux.
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)

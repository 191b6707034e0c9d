"""Makes data once, with all cores: finds a folder, locks it, removes leftovers and shares the work among processes."""

import errno
import fcntl
import multiprocessing
import os
import secrets
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from noether.common.processes import process_id
from noether.common.whole_file import remove
from noether.errors import NoetherError, RequestError
from noether.workers.death_signal import die_with_parent

STALE_SECONDS = 3600.0
Progress = Callable[[int, int], None]
"""Called with (samples made, samples to make)."""


def silent(done: int, total: int) -> None:
    """The progress of work that nobody watches."""


def cache_root() -> Path:
    """The user's cache: $XDG_CACHE_HOME, or ~/.cache where that is unset or relative.

    (The XDG base directory specification has relative paths ignored.) RequestError where there is no home folder.
    """
    variable = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return variable if variable.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:  # a container's user without an entry in /etc/passwd
        raise RequestError(
            "no-data-folder",
            "there is no folder for the data that noether generates",
            seen=str(error),
            expected="a home folder, or XDG_CACHE_HOME",
            fix="export XDG_CACHE_HOME=/a/folder/you/can/write/to",
        ) from None


@contextmanager
def process_map(workers: int) -> Iterator[Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]]:
    """A `map` over this many processes, in order, or in this process where it takes or may have no others.

    Items are taken from their iterable only as processes come free, so that an archive can be read on the way.
    """
    if workers <= 1 or multiprocessing.current_process().daemon:
        yield map
        return
    # Spawned, not forked: the caller may have threads. Nor from the fork server: it is one per process, and
    # what it preloads is the launcher's to choose.
    executor = ProcessPoolExecutor(workers, multiprocessing.get_context("spawn"), initializer=end_with_parent)

    def run(function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[Any]:
        waiting: deque[Future[Any]] = deque()
        try:
            for item in items:
                waiting.append(executor.submit(function, item))
                if len(waiting) >= 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise NoetherError(
                "a process that prepared data died, most often because memory ran out\n"
                "  fix       fewer processes, or more memory"
            ) from None

    try:
        yield run
    finally:
        executor.shutdown(cancel_futures=True)


def end_with_parent() -> None:
    """Have a worker end when its parent is gone, however that ended: the pool itself would wait for ever."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    parent = multiprocessing.parent_process()
    if not die_with_parent() and parent is not None:  # Not on Linux.
        threading.Thread(target=_end_after, args=(parent,), daemon=True).start()


def _end_after(parent: Any) -> None:
    parent.join()
    os._exit(1)


@contextmanager
def locked(folder: Path, leftovers: str = ".*.partial") -> Iterator[None]:
    """Make the folder, hold its lock, and remove what killed processes left there.

    The system releases the lock when this process ends in whatever way. Some network file systems know no locks. Work
    goes on without one there: two processes then make the same file twice, each under its own temporary name, and the
    last rename wins with the same content.
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
    """Returns the name of a file or folder while this process writes it."""
    return f".{name}.{socket.gethostname()}.{os.getpid()}-{secrets.token_hex(4)}.partial"


def _is_abandoned(path: Path) -> bool:
    """Whether a killed process of this host left it, or by its age one of another host.

    The lock does not tell: where locks do not work between hosts, another may be writing.
    """
    before, _, process = path.name.removesuffix(".partial").rpartition(".")
    pid = process.partition("-")[0]
    if before.endswith(f".{socket.gethostname()}") and pid.isdecimal() and process_id(int(pid)) is None:
        return True
    return time.time() - path.stat().st_mtime > STALE_SECONDS

"""Makes data once, with all cores: finds a folder, locks it, removes leftovers and shares the work among processes."""

import contextlib
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
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from noether.common.processes import process_id
from noether.common.whole_file import remove
from noether.errors import NoetherError, RequestError

STALE_SECONDS = 3600.0
Item = TypeVar("Item")
Made = TypeVar("Made")


def cache_root() -> Path:
    """The user's cache: $XDG_CACHE_HOME, or ~/.cache where that is unset or relative.

    (The XDG base directory specification has relative paths ignored.) RequestError where there is no home folder.
    """
    variable = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        return variable if variable.is_absolute() else Path.home() / ".cache"
    except RuntimeError as error:  # a container's user without an entry in /etc/passwd
        raise RequestError(
            "there is no folder to keep the embedded data set in",
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

    def run(function: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        waiting: deque[Future[Made]] = deque()
        try:
            for item in items:
                waiting.append(executor.submit(function, item))
                if len(waiting) >= 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool:
            raise NoetherError(
                "a process that was making data is gone: most often the system ended it for want of memory\n"
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

    def watch() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock, which the system releases when this process ends in whatever way.

    Some network file systems know no locks. Work goes on without one there: two processes then make the same
    file twice, each under its own temporary name, and the last rename wins with the same content.
    """
    with open(folder / ".lock", "a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL):
                raise
        yield


def partial_name(name: str) -> str:
    """Returns the name of a file or folder while this process writes it."""
    return f".{name}.{socket.gethostname()}.{os.getpid()}-{secrets.token_hex(4)}.partial"


def remove_stale(folder: Path, pattern: str = ".*.partial") -> None:
    """Remove what killed processes of this host left, and by age what those of others did.

    Locks do not tell: where they do not work between hosts, another may be writing.
    """
    for path in folder.glob(pattern):
        with contextlib.suppress(OSError):
            if _is_abandoned(path):
                remove(path)


def _is_abandoned(path: Path) -> bool:
    before, _, process = path.name.removesuffix(".partial").rpartition(".")
    pid = process.partition("-")[0]
    if before.endswith(f".{socket.gethostname()}") and pid.isdecimal() and process_id(int(pid)) is None:
        return True
    return time.time() - path.stat().st_mtime > STALE_SECONDS

"""Makes data once: finds a folder, locks it, and removes what killed processes left there."""

import errno
import fcntl
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from noether.common.errors import RequestError
from noether.common.processes import process_id
from noether.common.whole_file import remove

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

"""What a disk that refuses is told to users as: a request that cannot be met, not a traceback."""

import errno
import os
from collections.abc import Container, Iterator
from contextlib import contextmanager
from pathlib import Path

from noether.common.errors import RequestError

ELSEWHERE = "output_path=FOLDER"
"""What a start writes where the disk refuses its run."""


class DiskRefusal(RequestError):
    """The disk refuses a write that the run needs."""


DISK_ERRNOS = frozenset(
    (
        *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE, errno.EBUSY, errno.ENODEV),
        *(errno.ENXIO, errno.ENOTCONN, errno.EACCES, errno.EPERM, errno.ENOMEM, errno.ETIMEDOUT, errno.EHOSTDOWN),
        *(errno.EREMOTEIO, errno.EMFILE, errno.ENFILE, errno.ETXTBSY),
    )
)
"""What a disk or its server answers that cannot serve now: no mistake of the program's, whatever it was doing."""


@contextmanager
def refusals_told(
    folder: Path, errnos: Container[int | None] | None = None, *, elsewhere: str = ELSEWHERE
) -> Iterator[None]:
    """Turns an OSError of required reading and writing in a run folder into DiskRefusal; `errnos`: these alone."""
    try:
        yield
    except OSError as error:
        named = error.filename is not None and not str(error.filename).startswith(os.fspath(folder))
        if errnos is not None and (named or error.errno not in errnos):
            raise  # Of another disk, such as the data's.
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise DiskRefusal(
            "disk-refused",
            f"cannot write to {folder}",
            seen=f"{error.strerror} ({error.filename or folder})",
            expected="a writable folder" + (", on a disk with room" if is_full else ""),
            fix=f"make room, or {elsewhere}" if is_full else elsewhere,
            mount="" if is_full else str(folder.absolute().parent),
        ) from None

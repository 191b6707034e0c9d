"""Unpacks an archive of cases for as long as it is prepared: zip, tar, and archives of folders inside either."""

import os
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from noether.common.errors import RequestError, one_line
from noether.core.data.shared_work import locked, partial_name

FOLDER = ".unpacked"
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, IndexError)
"""What Python's readers raise on unreadable archives; RuntimeError also for passwords, IndexError for no name."""


def is_archive(path: Path) -> bool:
    """Whether a path is a file that is named like an archive."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


@contextmanager
def unpacked(archive: Path, out: Path) -> Iterator[Path]:
    """Yields the folder `OUT/.unpacked` with the archive's files, which is removed when all went well.

    After an interruption it is still there, and the archive is not unpacked again. Files keep their times of change,
    by which a case is known to be up to date. RequestError: the archive cannot be read to its end.
    """
    folder = out / FOLDER
    with locked(out, f".{FOLDER}.*.partial"):
        if not folder.is_dir():
            partial = out / partial_name(FOLDER)
            partial.mkdir()
            try:
                _extract(archive, partial)
                for inner in sorted(path for path in partial.rglob("*") if is_archive(path)):
                    _extract(inner, inner.parent)
                    inner.unlink()
            except BaseException:
                shutil.rmtree(partial, ignore_errors=True)
                raise
            partial.rename(folder)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for entry in zipped.infolist():
                    path = zipped.extract(entry, folder)  # Names that lead out of the folder are cleaned.
                    changed = time.mktime((*entry.date_time, 0, 0, -1))
                    os.utime(path, (changed, changed))
        else:
            with tarfile.open(archive) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(folder, filter="data")
                else:
                    tar.extractall(folder, _inside(tar, folder))
    except UNREADABLE as error:
        raise RequestError(
            "archive-unreadable",
            f"{archive} cannot be unpacked",
            seen=f"{type(error).__name__}: {one_line(error)}",
            expected="a complete .zip or .tar archive, and room for its files",
            fix="download the archive again, or give the folder that was unpacked from it",
        ) from error


def _inside(tar: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yields what may be unpacked into a folder, as `filter="data"` does, which Python has from 3.11.4 on.

    A TarError names a member, or the target of a link, that leads out of the folder, and a device.
    """
    root = os.path.realpath(folder)
    for member in tar:
        place = os.path.realpath(os.path.join(root, member.name))
        beside = os.path.dirname(place) if member.issym() else root
        target = os.path.realpath(os.path.join(beside, member.linkname)) if member.linkname else place
        if any(os.path.commonpath((root, end)) != root for end in (place, target)) or member.isdev():
            raise tarfile.TarError(f"{member.name} leads out of the folder")
        member.mode |= 0o700 if member.isdir() else 0o600
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        yield member

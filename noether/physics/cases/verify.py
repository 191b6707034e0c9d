"""Reads every prepared file once and compares it with its digest: a flipped bit would train other weights.

What was found intact is remembered in the user's cache by size and times of change, so that the next start reads only
what changed. Several processes that start at once on a host wait for the first.
"""

import hashlib
import json
import shlex
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.common.whole_file import write_json
from noether.core.data.packed import digest_of
from noether.core.data.shared_work import Progress, cache_root, locked
from noether.physics.cases.store import case_folder

Stamp = list[int]
"""Size, time of change of the content, and of the inode, which no program sets."""


@dataclass(frozen=True)
class _File:
    case: str
    path: Path
    digest: str
    stamp: Stamp


def verify_cases(root: Path, metadata: Mapping[str, Any], progress: Progress, workers: int) -> None:
    """Refuses prepared cases of which a file is not as it was written.

    Args:
        root: the prepared folder.
        metadata: what its `dataset.json` says.
        progress: called with (files read, files to read).
        workers: threads that read; hashing leaves Python's lock.

    RequestError: naming the first damaged cases, with the lines that make them again.
    """
    files = list(_files(root, metadata))
    with _remembered(root, metadata["sha256"]) as intact:
        unread = [file for file in files if intact.get(str(file.path.relative_to(root))) != file.stamp]
        damaged = []
        with ThreadPoolExecutor(workers) as threads:
            reading = {threads.submit(_digest_or_error, file.path): file for file in unread}
            for done, read in enumerate(as_completed(reading), 1):
                file = reading[read]
                if read.result() == file.digest:
                    intact[str(file.path.relative_to(root))] = file.stamp
                else:
                    damaged.append(file)
                progress(done, len(unread))
    if damaged:
        raise _refusal(root, damaged)


def _files(root: Path, metadata: Mapping[str, Any]) -> Iterator[_File]:
    used = dict.fromkeys(case for cases in metadata["splits"].values() for case in cases)
    for case in used:
        for name, own in metadata["cases"][case]["files"].items():
            path = case_folder(root, case) / name
            with suppress(FileNotFoundError):  # `check_cases` has said what is missing
                about = path.stat()
                yield _File(case, path, own["sha256"], [about.st_size, about.st_mtime_ns, about.st_ctime_ns])


def _digest_or_error(path: Path) -> str:
    try:
        return digest_of(path)
    except OSError as error:
        return error.strerror or str(error)


@contextmanager
def _remembered(root: Path, digest: str) -> Iterator[dict[str, Stamp]]:
    """Yields which files were intact at which stamp, and keeps what is added. Without a cache nothing is remembered."""
    place = hashlib.sha256(f"{root.resolve()}\n{digest}".encode()).hexdigest()[:32]
    with ExitStack() as held:
        record: Path | None = None
        intact: dict[str, Stamp] = {}
        with suppress(OSError, RequestError):  # no home folder, or one that cannot be written
            folder = cache_root() / "noether" / "verified"
            held.enter_context(locked(folder))
            record = folder / f"{place}.json"
        with suppress(OSError, ValueError, TypeError):
            intact = dict(json.loads(record.read_text())) if record else {}
        before = dict(intact)
        yield intact
        if record and intact != before:
            with suppress(OSError):
                write_json(record, intact)


def _refusal(root: Path, damaged: list[_File]) -> RequestError:
    cases = sorted({file.case for file in damaged})
    folders = shlex.join(str(case_folder(root, case)) for case in cases[:5])
    return RequestError(
        "case-damaged",
        f"{len(cases)} prepared case{'s are' if len(cases) > 1 else ' is'} damaged: {first_of(cases, 5)}",
        seen="\n".join(str(file.path) for file in damaged[:5]) + " with another SHA-256 than dataset.json records",
        expected="the files as `noether data prepare` wrote them",
        fix=f"rm -r {folders}, and prepare again with the same map      (complete cases are kept), or copy them again",
    )

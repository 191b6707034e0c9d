"""Read and write the store of prepared cases: a folder for each case, with a packed file for each set of points.

`OUT/cases/<case>/<set>.safetensors` holds one set's arrays, with points in random order; `case.json` beside it holds
the case's numbers, its arrays' ranges, and the digest of its sources. Only a complete folder has its final name.
"""

import hashlib
import json
import shlex
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from noether.common.atomic_write import write_json
from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.core.data.packed import Spec, digest_of, packed_writer, recorded_digest
from noether.core.data.shared_work import Progress, cache_root, locked, partial_name

CASE_FILE = "case.json"
FORMAT_VERSION = 3  # increase it when the same map gives different files
BLOCK_ROWS = 262_144
FLOAT = np.dtype("<f4")
WHOLE = np.dtype("<i4")
Step = Callable[[np.ndarray], np.ndarray]


@dataclass
class Column:
    """One array of a set: its source rows (N, C) or (N,), their conversion, and the range of the rows returned so far.

    where: the array's name in errors; step: a function that converts a block of source rows (float64) for the store.
    """

    source: np.ndarray
    where: str
    step: Step = np.asarray
    dtype: np.dtype[Any] = FLOAT
    low: np.ndarray = field(default_factory=lambda: np.array(np.inf), init=False)
    high: np.ndarray = field(default_factory=lambda: np.array(-np.inf), init=False)

    def rows(self, order: np.ndarray) -> np.ndarray:
        """Return the rows with the indices `order`, converted for the store. RequestError: a value is not finite."""
        block = self.step(self.source[order].astype(np.float64))
        finite = np.isfinite(block)
        if not finite.all():
            bad = int((~finite).reshape(len(block), -1).any(axis=1).sum())
            raise RequestError("values-not-finite", f"{self.where} has values that are not finite",
                               seen=f"{bad} of the {len(block)} rows checked", expected="finite numbers")  # fmt: skip
        self.low, self.high = np.minimum(self.low, block.min(axis=0)), np.maximum(self.high, block.max(axis=0))
        return np.ascontiguousarray(block, self.dtype)

    def span(self) -> dict[str, Any]:
        """Return the number of components, and the range of each component over the rows that `rows` has returned."""
        low, high = (np.atleast_1d(side).tolist() for side in (self.low, self.high))
        return {"components": len(low), "low": low, "high": high}


def case_folder(out: Path, case: str) -> Path:
    """Return the folder of a case; "/" in the names of nested cases becomes "-"."""
    return out / "cases" / case.replace("/", "-")


def set_file(out: Path, case: str, name: str) -> Path:
    """Return the path of the packed file for one set of a case."""
    return case_folder(out, case) / f"{name}.safetensors"


@contextmanager
def whole_folder(final: Path) -> Iterator[Path]:
    """Yield a new folder, which replaces `final` if the context raises no exception, and is removed otherwise."""
    final.parent.mkdir(parents=True, exist_ok=True)
    partial = final.with_name(partial_name(final.name))
    partial.mkdir()
    try:
        yield partial
        shutil.rmtree(final, ignore_errors=True)
        partial.rename(final)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def write_set(
    folder: Path, case: str, name: str, columns: Mapping[str, Column], rows: int, most: int | None = None
) -> tuple[dict[str, Any], np.ndarray]:
    """Write one set's arrays ({key: column}), block by block, in a random order seeded by the names of case and set.

    Return the set's entry in `case.json`, and the indices of the stored source rows (at most `most`), in their stored
    order. RequestError: an array has values that are not finite.
    """
    kept = min(rows, most or rows)
    rng = np.random.default_rng(zlib.crc32(f"{case}/{name}".encode()))
    order = rng.permutation(np.arange(rows, dtype=np.uint32))[:kept]

    def block(start: int) -> dict[str, np.ndarray]:
        return {key: column.rows(order[start : start + BLOCK_ROWS]) for key, column in columns.items()}

    first = block(0)
    specs = {key: Spec(rows.dtype, (kept, *rows.shape[1:])) for key, rows in first.items()}
    with packed_writer(folder / f"{name}.safetensors", specs, {"shuffled": "true"}) as write:
        write(0, first)
        for start in range(BLOCK_ROWS, kept, BLOCK_ROWS):
            write(start, block(start))
    spans = {key: column.span() for key, column in columns.items()}
    return {"points": kept, "of": rows, "parts": [], "arrays": spans}, order


def write_faces(folder: Path, name: str, faces: np.ndarray, order: np.ndarray) -> None:
    """Write the faces (F, C) of a set, given as indices of source rows; order: the order that `write_set` returned."""
    kept = np.empty(len(order), WHOLE)
    kept[order] = np.arange(len(order), dtype=WHOLE)
    with packed_writer(folder / f"{name}.faces.safetensors", {"faces": Spec(WHOLE, faces.shape)}, {}) as write:
        write(0, {"faces": kept[faces]})


def read_case_file(folder: Path) -> dict[str, Any] | None:
    """Return the contents of `case.json`; None if the case is incomplete, unreadable or in another format version."""
    try:
        about = json.loads((folder / CASE_FILE).read_text())
        whole = all((folder / name).stat().st_size == own["size"] for name, own in about["files"].items())
        return about if whole and about["format_version"] == FORMAT_VERSION else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def write_case_file(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Write `case.json`, with size and SHA-256 of each packed file; return its contents. OSError: the write fails."""
    files = {path.name: {"size": path.stat().st_size, "sha256": recorded_digest(path)}
             for path in sorted(folder.glob("*.safetensors"))}  # fmt: skip
    whole = {"format_version": FORMAT_VERSION, "files": files, **about}
    (folder / CASE_FILE).write_text(json.dumps(whole, indent=1, allow_nan=False) + "\n")
    return whole


def refuse_missing(out: Path | None) -> RequestError:
    """Return the error for a folder that `noether data prepare` did not make."""
    seen = "no dataset.json" if out and out.is_dir() else f"no folder {out.absolute()}" if out else "dataset_root=null"
    return RequestError(
        "no-prepared-cases",
        f"dataset_root={out} does not hold prepared cases" if out else "prepared cases need dataset_root",
        seen=seen,
        expected="the folder that `noether data prepare CASES OUT --map cases.yaml` makes",
        fix="noether data inspect CASES && noether data prepare CASES OUT --map cases.yaml",
    )


Stamp = list[int]
"""A file's size, modification time, and inode change time, which no program can set."""


@dataclass(frozen=True)
class _File:
    case: str
    path: Path
    key: str
    digest: str
    stamp: Stamp


def verify_cases(root: Path, metadata: Mapping[str, Any], progress: Progress, workers: int) -> None:
    """Check the digest of every file of the prepared cases; raise RequestError if any digest differs.

    metadata: contents of `dataset.json`; progress: called with (files read, files to read); workers: number of threads.
    The error names the first damaged cases, and the command that removes them so that they can be prepared again.
    """
    damaged = []
    with _remembered(root, metadata["sha256"]) as intact, ThreadPoolExecutor(workers) as threads:
        unread = [file for file in _files(root, metadata) if intact.get(file.key) != file.stamp]
        for done, (file, is_intact) in enumerate(zip(unread, threads.map(_is_intact, unread), strict=True), 1):
            if is_intact:
                intact[file.key] = file.stamp
            else:
                damaged.append(file)
            progress(done, len(unread))
    if not damaged:
        return
    cases = sorted({file.case for file in damaged})
    folders = shlex.join(str(case_folder(root, case)) for case in cases[:5])
    raise RequestError(
        "case-damaged",
        f"{len(cases)} prepared case{'s are' if len(cases) > 1 else ' is'} damaged: {first_of(cases, 5)}",
        seen="\n".join(str(file.path) for file in damaged[:5]) + ": SHA-256 differs from that in dataset.json",
        expected="the unmodified files that `noether data prepare` wrote",
        fix=f"rm -r {folders}      (then copy these cases again, or prepare again with the same map: others are kept)",
    )


def _files(root: Path, metadata: Mapping[str, Any]) -> Iterator[_File]:
    used = dict.fromkeys(case for cases in metadata["splits"].values() for case in cases)
    for case in used:
        for name, own in metadata["cases"][case]["files"].items():
            path = case_folder(root, case) / name
            with suppress(FileNotFoundError):  # `check_cases` has already reported missing files
                about = path.stat()
                stamp = [about.st_size, about.st_mtime_ns, about.st_ctime_ns]
                yield _File(case, path, str(path.relative_to(root)), own["sha256"], stamp)


def _is_intact(file: _File) -> bool:
    with suppress(OSError):
        return digest_of(file.path) == file.digest
    return False


@contextmanager
def _remembered(root: Path, digest: str) -> Iterator[dict[str, Stamp]]:
    """Yield the saved stamps of intact files, and save additions on exit; without a usable cache, save nothing."""
    place = hashlib.sha256(f"{root.resolve()}\n{digest}".encode()).hexdigest()[:32]
    with ExitStack() as held:
        record: Path | None = None
        intact: dict[str, Stamp] = {}
        with suppress(OSError, RequestError, ValueError, TypeError):  # no home folder, or not writable
            folder = cache_root() / "noether" / "verified"
            held.enter_context(locked(folder))
            record = folder / f"{place}.json"
            intact = dict(json.loads(record.read_text()))
        before = dict(intact)
        yield intact
        if record and intact != before:
            with suppress(OSError):
                write_json(record, intact)

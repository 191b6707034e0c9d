"""A split of a data set in one file that is memory-mapped, so that opening the split needs no memory.

The file is a standard safetensors file: eight bytes with the length of the header (little-endian), a JSON header, then
the raw data of the arrays, back to back. Each array holds all samples along its first axis, so that one sample of a
field is one contiguous piece of the file. Layout and its limits: https://github.com/huggingface/safetensors#format

A second file beside it contains its SHA-256, in the format of `sha256sum --check`. This module does not use torch.
"""

import errno
import json
import math
import os
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from hashlib import file_digest
from pathlib import Path
from shlex import quote
from typing import Any, BinaryIO

import numpy as np
from safetensors import SafetensorError, safe_open

from noether.common.atomic_write import flush, write_whole
from noether.common.errors import RequestError, one_line
from noether.core.data.shared_work import partial_name

# safetensors names a type by its kind and number of bits; the data are little-endian on every machine.
_SIZES = {"F": (8, 4, 2), "I": (8, 4, 2, 1), "U": (8, 4, 2, 1)}
DTYPES: dict[str, np.dtype[Any]] = {
    **{f"{kind}{8 * size}": np.dtype(f"<{kind.lower()}{size}") for kind, sizes in _SIZES.items() for size in sizes},
    "BOOL": np.dtype("?"),
}
"""NumPy's types by their names in safetensors; types that NumPy lacks are absent."""
ALIGNMENT = 64  # bytes: a cache line, and the widest vector load


@dataclass(frozen=True)
class Spec:
    """The type and the shape of one array of a packed file; the first axis counts the samples."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the array's data in bytes."""
        return self.dtype.itemsize * math.prod(self.shape)


@dataclass(frozen=True)
class PackedArrays:
    """The arrays of an open packed file, read from disk on access.

    `arrays` maps each key to a memory map (samples, ...), copy-on-write: changes stay in this process.
    Pickling passes only the path, and the receiver opens the file again, so that a loader's worker shares the
    pages instead of receiving a copy.
    """

    path: Path
    arrays: Mapping[str, np.ndarray]
    metadata: Mapping[str, str]

    @property
    def samples(self) -> int:
        """Length of the first axis, which all arrays share."""
        return len(next(iter(self.arrays.values())))

    def __reduce__(self) -> tuple[Any, ...]:
        return open_packed, (self.path,)


WriteSamples = Callable[[int, Mapping[str, np.ndarray]], None]
"""A function that writes samples from index `start` on, given `start` and {key: array (samples to write, ...)}."""


@contextmanager
def packed_writer(path: Path, specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> Iterator[WriteSamples]:
    """Yield the function that writes the samples of a packed file, which gets its name only when complete.

    The data go to a temporary file beside `path`, which is flushed and renamed on leaving the context, or removed on an
    exception. Samples that are never written are zeros. ValueError: there is no array, the arrays differ in their
    number of samples, the format lacks a type, or written arrays differ from `specs` in a key, a type or a shape.
    """
    header, offsets, total = _layout(specs, metadata)
    unfinished = path.with_name(partial_name(path.name))
    try:
        with open(unfinished, "xb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            # The data are not written through a memory map, where a full disk raises SIGBUS instead of OSError.
            file.truncate(total)
            yield partial(_write, file, specs, offsets)
        flush(unfinished)
        write_digest(path, digest_of(unfinished))  # First, so that a kill never leaves a file without its digest.
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    with suppress(OSError):  # Not every file system can flush a folder, and the data are safe without that.
        flush(path.parent)


def _write(
    file: BinaryIO, specs: Mapping[str, Spec], offsets: Mapping[str, int], start: int, arrays: Mapping[str, np.ndarray]
) -> None:
    if arrays.keys() != specs.keys():
        raise ValueError(f"arrays {sorted(arrays)} are not the announced {sorted(specs)}")
    for key, array in arrays.items():
        spec = specs[key]
        fits = array.shape[1:] == spec.shape[1:] and start + len(array) <= spec.shape[0]
        if array.dtype.newbyteorder("<") != spec.dtype or not fits:
            raise ValueError(f"{key}: {array.dtype} {array.shape} from sample {start} on does not fit {spec}")
        data = np.ascontiguousarray(array, spec.dtype)
        file.seek(offsets[key] + start * spec.dtype.itemsize * math.prod(spec.shape[1:]))
        file.write(data.tobytes())


def memory_map(path: Path) -> np.ndarray:
    """Memory-map a file copy-on-write; the map keeps a descriptor of the file open."""
    # As a plain array over the map: slicing a memmap creates an object of its Python class every time.
    return np.asarray(np.memmap(path, np.uint8, mode="c"))


def open_packed(path: Path, bytes_of: Callable[[Path], np.ndarray] = memory_map) -> PackedArrays:
    """Open a packed file, reading only its header. RequestError: it is missing, truncated, or has another layout.

    bytes_of: the function that maps the file into memory.
    """
    try:
        with open(path, "rb") as file, safe_open(path, "np"):  # refuses truncated files, gaps and invalid headers
            start = 8 + struct.unpack("<Q", file.read(8))[0]
            entries = json.loads(file.read(start - 8))
    except OSError as error:
        raise RequestError(
            "packed-data-not-opened", f"{path} cannot be opened", seen=error.strerror or str(error),
            expected="a readable data file",
            fix=f"ls -l {quote(str(path.parent))}      (is the path right, and may this user read it?)",
        ) from None  # fmt: skip
    except SafetensorError as error:
        raise _refusal(path, f"{path.stat().st_size} bytes: {error}", "a whole safetensors file") from None
    metadata = entries.pop("__metadata__", None) or {}
    data = bytes_of(path)[start:]
    arrays = {}
    for key, entry in entries.items():
        if entry["dtype"] not in DTYPES:
            raise _refusal(path, f"{key} of type {entry['dtype']}", "arrays of " + ", ".join(DTYPES))
        begin, end = entry["data_offsets"]
        arrays[key] = data[begin:end].view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    samples = {array.shape[:1] for array in arrays.values()}
    if len(samples) != 1 or () in samples:
        shapes = ", ".join(f"{key} {array.shape}" for key, array in arrays.items()) or "no array"
        raise _refusal(path, shapes, "at least one array, all with the same number of samples")
    return PackedArrays(path, arrays, metadata)


def digest_path(path: Path) -> Path:
    """Return the path of a file's digest."""
    return path.with_name(f"{path.name}.sha256")


def write_digest(path: Path, digest: str) -> None:
    """Write a file's digest beside it. OSError: the disk refuses."""
    write_whole(digest_path(path), f"{digest}  {path.name}\n")


def recorded_digest(path: Path) -> str:
    """Read the digest recorded beside a file. OSError or ValueError: there is no digest."""
    beside = digest_path(path)
    if not beside.is_file():  # Reading a pipe would block.
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(beside))
    return beside.read_text(encoding="ascii").partition(" ")[0]


def digest_of(path: Path) -> str:
    """Return a file's SHA-256, in hexadecimal."""
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def check_digest(path: Path) -> None:
    """Refuse a file that does not match its recorded digest, or has no digest.

    The check reads the whole file, as the caller does next anyway. A flipped bit would change the trained weights.
    """
    name = digest_path(path).name
    try:
        recorded = recorded_digest(path)
    except (OSError, ValueError) as error:
        raise RequestError(
            "packed-data-unverified", f"{path} has no digest to verify it by",
            seen=f"{name}: {getattr(error, 'strerror', None) or one_line(error)}",
            expected=f"{name}, the file beside it with its digest",
            fix=f"(cd {quote(str(path.parent))} && sha256sum {path.name} > {name})      (trusts the file as it is)",
        ) from None  # fmt: skip
    try:
        found = digest_of(path)
    except OSError as error:
        found = error.strerror or str(error)
    if found != recorded:
        raise RequestError(
            "packed-data-damaged", f"{path} is damaged", seen=f"SHA-256 {found}",
            expected=f"{recorded}, the digest recorded beside it",
            fix=f"rm {quote(str(path))} {quote(str(digest_path(path)))}      (then make or copy it again)",
        )  # fmt: skip


def _layout(specs: Mapping[str, Spec], metadata: Mapping[str, str]) -> tuple[bytes, dict[str, int], int]:
    """Return the header, the offset of each array in the file, and the size of the file."""
    names = {dtype: name for name, dtype in DTYPES.items()}
    for key, spec in specs.items():
        if spec.dtype not in names or not spec.shape:
            raise ValueError(f"{key}: {spec} cannot be packed; types are {', '.join(DTYPES)}")
    if len({spec.shape[0] for spec in specs.values()}) != 1:
        raise ValueError(f"arrays must share their number of samples: {dict(specs)}")
    # The format forbids gaps, so an array is aligned only if the arrays before it fill whole cache lines. With wider
    # types written first, every array is at least aligned to its own type.
    order = sorted(specs, key=lambda key: (-specs[key].dtype.itemsize, specs[key].nbytes % ALIGNMENT != 0, key))
    entries: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for key in order:
        spec, begin = specs[key], end
        end += spec.nbytes
        entries[key] = {"dtype": names[spec.dtype], "shape": list(spec.shape), "data_offsets": [begin, end]}
    header = json.dumps(entries, separators=(",", ":")).encode()
    header += b" " * (-(8 + len(header)) % ALIGNMENT)
    start = 8 + len(header)
    return header, {key: start + entries[key]["data_offsets"][0] for key in order}, start + end


def _refusal(path: Path, seen: str, expected: str) -> RequestError:
    return RequestError("packed-data-incomplete", f"{path} is not a complete packed data file", seen=seen,
                        expected=expected, fix=f"rm {quote(str(path))}      (and write or copy it again)")  # fmt: skip

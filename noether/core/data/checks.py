"""Check samples before training, describe a split, and identify the data of a run."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.errors import RequestError
from noether.core.data.build import OwnStream
from noether.core.data.moments import Moments

if TYPE_CHECKING:
    from noether.core.data.build import Splits
    from noether.core.data.loader import Dataset

OF_A_POINT = ("normals", "area", "sdf", "cell_volume", "part")
"""Suffixes of arrays that have a row for each point of `SET_points`: SET_normals, SET_area, …"""
CHANNELS = 8
"""The maximum length of an axis whose entries are described one by one; nobody would read a longer table."""
FIRST_SAMPLES = 2


@dataclass
class SampleChecks:
    """Finds faults in the samples of a data set, comparing them with the first sample.

    rows: {key of an array with a row for each point: the key of its points}, in addition to those of `set_rows`.
    inputs: the argument `inputs` of `set_rows`.
    used: the keys of arrays to check, in addition to `inputs` and all points; empty: all keys.
    first: {key: (type, shape without the first axis)} of the arrays of the first sample.
    """

    rows: Mapping[str, str] = field(default_factory=dict)
    inputs: Collection[str] = ()
    used: Collection[str] = ()
    first: dict[str, tuple[str, tuple[int, ...]]] | None = None

    def faults(self, sample: Mapping[str, Any]) -> list[str]:
        """Return faults in words: values that are not finite, differences from the first sample, missing rows."""
        arrays = {
            key: np.asarray(value)
            for key, value in sample.items()
            if not self.used or key in self.used or key in self.inputs or key.endswith("_points")
        }
        if self.first is None:
            self.first = {key: (str(array.dtype), array.shape[1:]) for key, array in arrays.items()}
        faults = [f"{key} is missing" for key in self.first if key not in arrays]
        faults += [f"{key} is in this sample and not in the first" for key in arrays if key not in self.first]
        for key, array in arrays.items():
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                bad = ~np.isfinite(array)
                faults.append(f"{key} has {int(bad.sum())} of {array.size} values that are not finite")
            dtype, components = self.first.get(key, (str(array.dtype), array.shape[1:]))
            if array.shape[1:] != components:
                faults.append(f"{key} has the shape {array.shape}, and {components} components in the first sample")
            elif str(array.dtype) != dtype:
                faults.append(f"{key} is {array.dtype}, and {dtype} in the first sample")
        for key, points in {**set_rows(sample, self.inputs), **self.rows}.items():
            if key in sample and points in sample:
                have, wanted = (np.shape(sample[name])[:1] or ("no",) for name in (key, points))
                if have != wanted:
                    faults.append(f"{key} has {have[0]} rows, and {points} {wanted[0]}")
        return faults


def set_rows(sample: Mapping[str, Any], inputs: Iterable[str] = ()) -> dict[str, str]:
    """Return {key: key of its points} for the arrays of a sample whose keys imply one row per point.

    These keys name normals, areas, distances and the like, or are keys in `inputs` that start with a set's name.
    """
    rows: dict[str, str] = {}
    for points in (key for key in sample if key.endswith("_points")):
        prefix = points.removesuffix("points")
        beside = [prefix + own for own in OF_A_POINT if prefix + own in sample]
        rows |= dict.fromkeys([*beside, *(key for key in inputs if key.startswith(prefix))], points)
    return rows


def checked_samples(
    dataset: "Dataset",
    indices: Sequence[int],
    rows: Mapping[str, str],
    *,
    inputs: Collection[str] = (),
    used: Collection[str] = (),
    shorten: Callable[[Any], Any] = lambda sample: sample,
) -> Iterator[Mapping[str, Any]]:
    """Yield training samples after shortening each by `shorten` and checking it as `SampleChecks` does.

    RequestError: a sample is faulty; the error names the sample and its file.
    """
    checks = SampleChecks(rows, inputs, used)
    for index in indices:
        sample = shorten(dataset[index])
        if faults := checks.faults(sample):
            raise RequestError(
                "sample-unusable", f"sample {sample_label(dataset, index)} of the training split cannot be trained on",
                seen="\n".join(faults[:5]),
                expected="finite numbers, with the names, types and components of the first sample",
                fix="noether data describe      (lists every such sample); then fix the samples, or leave them out",
            )  # fmt: skip
        yield sample


def sample_label(dataset: "Dataset", index: int) -> str:
    """Return a sample's label for errors: its index, and its name and file if the data set gives them."""
    said = [str(getattr(dataset, what)(index)) for what in ("name", "where") if hasattr(dataset, what)]
    return f"{index} ({', '.join(said)})" if said else str(index)


def describe_split(dataset: "Dataset") -> dict[str, Any]:
    """Return {samples, faults, arrays: {key: {shape, dtype, channels: [{min, max, mean, std}]}}}.

    faults: the faults of single samples, in words (values that are not finite; wrong rows, types or components).

    In `shape`, an axis's length is a range if it differs between samples. An array (N, C) or (C,) with C of at most
    CHANNELS has C channels; any other array, such as an image, has one channel. The statistics of a channel, in
    float64, are taken over all samples and all other axes.
    """
    shapes: dict[str, list[tuple[int, ...]]] = {}
    faults: list[str] = []
    types: dict[str, str] = {}
    moments: dict[str, _Columns] = {}
    checks = SampleChecks()
    for index in range(len(dataset)):
        sample = dataset[index]
        faults += [f"sample {sample_label(dataset, index)}: {words}" for words in checks.faults(sample)]
        for key, value in sample.items():
            array = np.asarray(value)
            shapes.setdefault(key, []).append(array.shape)
            types[key] = str(array.dtype)
            by_channel = array.ndim in (1, 2) and 1 <= array.shape[-1] <= CHANNELS
            columns = array.reshape(-1, array.shape[-1] if by_channel else 1)
            if key not in moments:
                moments[key] = _Columns(columns.shape[1])
            moments[key].add(columns.astype(np.float64))
    return {
        "samples": len(dataset),
        "faults": faults,
        "arrays": {
            key: {"shape": _shape(every), "dtype": types[key], "channels": moments[key].rows()}
            for key, every in shapes.items()
        },
    }


def _shape(every: list[tuple[int, ...]]) -> str:
    if len({len(shape) for shape in every}) > 1:
        return "of differing ranks"
    axes = [(min(lengths), max(lengths)) for lengths in zip(*every, strict=True)]
    words = [str(low) if low == high else f"{low}..{high}" for low, high in axes]
    return f"({', '.join(words)}{',' if len(words) == 1 else ''})"


class _Columns(Moments):
    """The moments, the minimum and the maximum of each column."""

    low, high = np.array(np.inf), np.array(-np.inf)

    def add(self, values: np.ndarray) -> None:
        """Add values (n, columns); ignore them if n is 0 or the number of columns differs."""
        if not len(values) or values.shape[1] != len(self.mean):
            return
        super().add(values)
        self.low, self.high = np.minimum(self.low, values.min(axis=0)), np.maximum(self.high, values.max(axis=0))

    def rows(self) -> list[dict[str, float]]:
        """Return {min, max, mean, std} of each column."""
        columns = {"min": self.low, "max": self.high, "mean": self.mean, "std": self.deviation}
        return [{name: float(of[column]) for name, of in columns.items()} for column in range(len(self.mean))]


def data_identity(splits: "Splits") -> dict[str, Any]:
    """Return the lengths of the training and the test split, and a digest of the data.

    A data set may provide the digest as a string `digest`. Prepared cases provide the digest of `dataset.json`, which
    lists the digest of every file. For other data sets, the digest is computed from the first samples; it is None if
    these samples differ from one read to the next, as augmented samples do.
    """
    digest, train = getattr(splits.train, "digest", None), splits.train
    if not isinstance(digest, str):
        found = {samples_digest(train, range(len(train))) for _ in range(2)}
        digest = found.pop() if len(found) == 1 else None
    samples = None if isinstance(train, OwnStream) else len(train)  # A longer run reads more of a stream.
    return {"training": samples, "test": len(splits.test), "digest": digest}


def samples_digest(dataset: "Dataset", indices: Sequence[int]) -> str:
    """Return a digest of the samples at the first FIRST_SAMPLES of `indices`."""
    import torch

    digest = sha256()
    for index in indices[:FIRST_SAMPLES]:
        sample: Mapping[str, Any] = dataset[index]
        for key in sorted(sample):
            values = sample[key].detach().cpu().contiguous().reshape(-1)
            digest.update(f"{key} {values.dtype} {tuple(sample[key].shape)}\n".encode())
            digest.update(values.view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

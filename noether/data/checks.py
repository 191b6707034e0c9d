"""Checks samples before training: values that are not finite, numbers of rows, names, types and shapes."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.errors import RequestError

if TYPE_CHECKING:
    from noether.data.loader import Dataset

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Of a sample: each array's type, and its shape without the first axis."""


def sample_layout(sample: Mapping[str, Any]) -> Layout:
    """Returns the types and components of a sample's arrays, which all samples of a data set share."""
    arrays = {key: np.asarray(value) for key, value in sample.items()}
    return {key: (str(array.dtype), array.shape[1:]) for key, array in arrays.items()}


def sample_faults(sample: Mapping[str, Any], expected: Layout, rows: Mapping[str, str]) -> list[str]:
    """Returns what is wrong with a sample, in words; empty where nothing is.

    Args:
        sample: arrays by key.
        expected: the layout of the first sample.
        rows: keys of arrays that have a row for each point, and the key of those points.
    """
    arrays = {key: np.asarray(value) for key, value in sample.items()}
    faults = [f"{key} is missing" for key in expected if key not in arrays]
    faults += [f"{key} is in this sample and not in the first" for key in arrays if key not in expected]
    for key, array in arrays.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            bad = ~np.isfinite(array)
            faults.append(f"{key} has {int(bad.sum())} of {array.size} values that are not finite")
        if key not in expected:
            continue
        dtype, components = expected[key]
        if array.shape[1:] != components:
            faults.append(f"{key} has the shape {array.shape}, and {components} components in the first sample")
        elif str(array.dtype) != dtype:
            faults.append(f"{key} is {array.dtype}, and {dtype} in the first sample")
    for key, points in rows.items():
        if key in arrays and points in arrays and len(arrays[key]) != len(arrays[points]):
            faults.append(f"{key} has {len(arrays[key])} rows, and {points} {len(arrays[points])}")
    return faults


def checked_samples(
    dataset: "Dataset",
    indices: Sequence[int],
    rows: Mapping[str, str],
    *,
    used: Collection[str] = (),
    shorten: Callable[[Any], Any] = lambda sample: sample,
) -> Iterator[Mapping[str, Any]]:
    """Yields training samples, each checked.

    Args:
        dataset: the training split.
        indices: positions of the samples.
        rows: as for `sample_faults`.
        used: the keys to check; empty: all.
        shorten: what is taken of a sample before it is looked at and yielded.

    Raises:
        RequestError: a sample is wrong; it names the sample and its file.
    """
    expected: Layout | None = None
    for index in indices:
        sample = shorten(dataset[index])
        looked_at = {key: value for key, value in sample.items() if not used or key in used}
        if expected is None:
            expected = sample_layout(looked_at)
        if faults := sample_faults(looked_at, expected, rows):
            raise RequestError(
                f"sample {sample_name(dataset, index)} of the training split cannot be trained on",
                seen="\n".join(faults[:5]),
                expected="finite numbers, with the names, types and components of the first sample",
                fix="noether data describe      (lists every such sample); then fix the samples, or leave them out",
            )
        yield sample


def sample_name(dataset: "Dataset", index: int) -> str:
    """What errors call a sample: its position, its name and its file, as far as the data set says them."""
    words = [str(index)]
    for offered in ("name", "where"):
        if hasattr(dataset, offered):
            words.append(str(getattr(dataset, offered)(index)))
    return words[0] if len(words) == 1 else f"{words[0]} ({', '.join(words[1:])})"


def set_rows(sample: Mapping[str, Any]) -> dict[str, str]:
    """Which arrays of a sample have a row for each point by their name alone: normals, areas, distances."""
    known = ("normals", "area", "sdf", "cell_volume", "part")
    points = [key.removesuffix("_points") for key in sample if key.endswith("_points")]
    return {f"{name}_{own}": f"{name}_points" for name in points for own in known if f"{name}_{own}" in sample}

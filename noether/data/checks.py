"""Checks samples before training: values that are not finite, numbers of rows, names, types and shapes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.errors import RequestError

if TYPE_CHECKING:
    from noether.data.loader import Dataset

Layout = dict[str, tuple[str, tuple[int, ...]]]
"""Of a sample: each array's type, and its shape without the first axis."""
OF_A_POINT = ("normals", "area", "sdf", "cell_volume", "part")
"""Arrays beside `SET_points` that have a row for each point, by what follows the set's name."""


def sample_layout(sample: Mapping[str, Any]) -> Layout:
    """Returns the types and components of a sample's arrays, which all samples of a data set share."""
    arrays = {key: np.asarray(value) for key, value in sample.items()}
    return {key: (str(array.dtype), array.shape[1:]) for key, array in arrays.items()}


def sample_faults(sample: Mapping[str, Any], expected: Layout) -> list[str]:
    """Returns what is wrong with a sample's arrays, in words; `expected` is the layout of the first sample."""
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
    return faults


def row_faults(sample: Mapping[str, Any], rows: Mapping[str, str]) -> list[str]:
    """Returns which arrays of a sample do not have a row for each point, in words.

    rows: keys of arrays that have a row for each point, and the key of those points.
    """
    shapes = {key: np.shape(value) for key, value in sample.items()}
    return [
        f"{key} has {shapes[key][0] if shapes[key] else 'no'} rows, and {points} {shapes[points][0]}"
        for key, points in rows.items()
        if key in shapes and points in shapes and shapes[key][:1] != shapes[points][:1]
    ]


def set_rows(sample: Mapping[str, Any], inputs: Iterable[str] = ()) -> dict[str, str]:
    """Returns the arrays of a sample that have a row for each point by their name alone, with the key of their points.

    Those are normals, areas, distances and the like, and of `inputs` those that begin with the name of a set.
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
    """Yields training samples, each checked.

    Args:
        dataset: the training split.
        indices: positions of the samples.
        rows: as for `row_faults`, beside those of `set_rows`.
        inputs: as for `set_rows`.
        used: the keys whose numbers are checked, beside `inputs` and all points; empty: all.
        shorten: what is taken of a sample before it is looked at and yielded.

    Raises:
        RequestError: a sample is wrong; it names the sample and its file.
    """
    expected: Layout | None = None
    for index in indices:
        sample = shorten(dataset[index])
        looked_at = {
            key: value
            for key, value in sample.items()
            if not used or key in used or key in inputs or key.endswith("_points")
        }
        if expected is None:
            expected = sample_layout(looked_at)
        if faults := sample_faults(looked_at, expected) + row_faults(sample, {**set_rows(sample, inputs), **rows}):
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

"""Checks samples before training: values that are not finite, numbers of rows, names, types and shapes."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.common.errors import RequestError

if TYPE_CHECKING:
    from noether.core.data.loader import Dataset

OF_A_POINT = ("normals", "area", "sdf", "cell_volume", "part")
"""Arrays beside `SET_points` that have a row for each point, by what follows the set's name."""


@dataclass
class SampleChecks:
    """Finds what is wrong with the samples of a data set; the first is what the others are held against.

    rows: keys of arrays that have a row for each point, and the key of those points, beside those of `set_rows`.
    inputs: as for `set_rows`.
    used: the keys whose numbers are checked, beside `inputs` and all points; empty: all.
    first: of each array of the first sample its type, and its shape without the first axis.
    """

    rows: Mapping[str, str] = field(default_factory=dict)
    inputs: Collection[str] = ()
    used: Collection[str] = ()
    first: dict[str, tuple[str, tuple[int, ...]]] | None = None

    def faults(self, sample: Mapping[str, Any]) -> list[str]:
        """Says what is not finite, what differs from the first sample, and what has not a row for each point."""
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
    """Yields training samples, each shortened by `shorten`, then checked; the others are as for `SampleChecks`.

    Raises:
        RequestError: a sample is wrong; it names the sample and its file.
    """
    checks = SampleChecks(rows, inputs, used)
    for index in indices:
        sample = shorten(dataset[index])
        if faults := checks.faults(sample):
            raise RequestError(
                "sample-unusable",
                f"sample {sample_label(dataset, index)} of the training split cannot be trained on",
                seen="\n".join(faults[:5]),
                expected="finite numbers, with the names, types and components of the first sample",
                fix="noether data describe      (lists every such sample); then fix the samples, or leave them out",
            )
        yield sample


def sample_label(dataset: "Dataset", index: int) -> str:
    """What errors call a sample: its position, its name and its file, as far as the data set says them."""
    said = [str(getattr(dataset, what)(index)) for what in ("name", "where") if hasattr(dataset, what)]
    return f"{index} ({', '.join(said)})" if said else str(index)

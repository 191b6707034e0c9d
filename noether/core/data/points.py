"""Choose the points of a sample: all of them in evaluation, a new random draw in every epoch of training."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from noether.core.data.order import SampleKey, fixed_rows

Sample = dict[str, Tensor]
"""One sample, {key: array}. The arrays with one prefix (`surface_…`) share their first axis, which counts points."""

GEOMETRY = "geometry_points"
"""Key of the points that represent the shape for a model: surface points in random order."""
ANCHOR = "anchor_"
"""Key prefix of anchors, the points to which a model attends if they differ from its query points."""
STATISTICS_POINTS = 262_144
"""How many points of a shuffled set are used for a field's statistics; more would change them by a thousandth."""
KNOWN = ("points", "normals", "sdf")
"""Suffixes of arrays that are known before the flow is solved; anchors get these arrays and the model's inputs."""


@dataclass(frozen=True)
class PointSampler:
    """Chooses the points of a sample, at random for each use of the sample in training.

    The draw depends only on (seed, epoch, sample), so neither the world size nor the number of loader workers
    changes it.

    per_update: {prefix (`surface`, `volume`): number of points to draw}, or one number for every set. A set without a
        number keeps all its points.
    geometry: the number of points, from the set that `shape_key` names, that represent the shape; None: all points.
    pad: True if model and task read masks, so that samples with different numbers of points may share a padded batch.
    inputs: the keys of further arrays that the model reads at each point, and therefore at anchors.
    shuffled: True if the samples' points are stored in random order. A draw then takes consecutive points from a random
        start, so that a memory-mapped sample of any size is read as one contiguous piece.
    evaluation: {prefix: maximum number of points in evaluation}, which uses the first points; other sets use all.
    """

    seed: int
    per_update: Mapping[str, int] | int = field(default_factory=dict)
    geometry: int | None = None
    pad: bool = False
    inputs: tuple[str, ...] = ()
    shuffled: bool = False
    evaluation: Mapping[str, int] = field(default_factory=dict)

    def for_training(self, sample: Sample, key: SampleKey) -> Sample:
        """Return the sample with a new draw of its query points and of the points that represent its shape."""
        drawn = dict(sample)
        shape = _shape_of(sample)
        if shape is None and not self.per_update:
            return drawn  # Skip the generator if nothing is drawn: it costs as much as reading a small sample.
        rng = np.random.default_rng([self.seed, key.epoch, key.sample])
        if shape is not None:
            # Draw a new order even without a limit: a model that takes the first n points must not favour any point.
            drawn[GEOMETRY] = self._draw(rng, len(shape), self.geometry)(shape)
        for prefix, count in self._counts(sample).items():
            if keys := point_keys(sample, prefix):
                take = self._draw(rng, sample[keys[0]].shape[0], count)
                drawn.update({name: take(sample[name]) for name in keys})
        return drawn

    def for_evaluation(self, sample: Sample) -> Sample:
        """Return the sample with all points that `evaluation` allows; a fixed choice of them represents the shape.

        If training draws N points of a set, the set also gets N anchors (`anchor_surface_points`, …), so that a model
        with attention between points attends to as many points as in training.
        """
        drawn = first_points(sample, self.evaluation)
        if (shape := _shape_of(sample)) is not None:
            drawn[GEOMETRY] = shape[self._fixed_rows(len(shape), self.geometry)]
        for prefix, count in self._counts(sample).items():
            every = point_keys(sample, prefix)
            if keys := [key for key in every if key in self.inputs or key.removeprefix(f"{prefix}_") in KNOWN]:
                rows = self._fixed_rows(len(sample[keys[0]]), count)
                drawn.update({ANCHOR + key: sample[key][rows] for key in keys})
        return drawn

    def for_statistics(self, sample: Sample) -> Sample:
        """Return the sample with its points for a field's statistics: all points, or the first points if shuffled."""
        prefixes = [key.removesuffix("_points") for key in sample if key.endswith("_points")]
        return first_points(sample, dict.fromkeys(prefixes, STATISTICS_POINTS)) if self.shuffled else sample

    def _counts(self, sample: Sample) -> Mapping[str, int]:
        """Return the number of points to draw from each set."""
        if not isinstance(self.per_update, int):
            return self.per_update
        sets = (key.removesuffix("_points") for key in sample if key.endswith("_points") and key != GEOMETRY)
        return dict.fromkeys(sets, self.per_update)

    def _draw(self, rng: np.random.Generator, available: int, count: int | None) -> Callable[[Tensor], Tensor]:
        wanted = min(count or available, available)
        if self.shuffled:
            start = int(rng.integers(max(available, 1)))
            over = max(0, start + wanted - available)
            return lambda array: torch.cat([array[start : start + wanted], array[:over]])
        rows = torch.from_numpy(rng.choice(available, wanted, replace=False, shuffle=True))
        return lambda array: array.index_select(0, rows)

    def _fixed_rows(self, available: int, wanted: int | None) -> Tensor | slice:
        if self.shuffled:
            return slice(0, min(wanted or available, available))
        return torch.from_numpy(fixed_rows(available, wanted or available))


def shape_key(keys: Iterable[str]) -> str | None:
    """Return the key of the points that represent the shape; None if there are no points.

    The key is `geometry_points` if the sample has them, else `surface_points`, else the key of its first set of points,
    such as the points of a solid.
    """
    return _shape_key(tuple(keys))


@lru_cache(maxsize=64)  # Called for every sample of every batch; the samples of a data set have the same keys.
def _shape_key(keys: tuple[str, ...]) -> str | None:
    sets = [key for key in keys if key.endswith("_points") and not key.startswith(ANCHOR)]
    return next((key for key in (GEOMETRY, "surface_points") if key in sets), sets[0] if sets else None)


def _shape_of(sample: Sample) -> Tensor | None:
    key = shape_key(sample)
    return None if key is None else sample[key]


def first_points(sample: Sample, most: Mapping[str, int]) -> Sample:
    """Return the sample with only the first points of each set that `most` names; `most` gives their number."""
    shorter = dict(sample)
    for prefix, count in most.items():
        shorter.update({key: sample[key][:count] for key in point_keys(sample, prefix)})
    return shorter


def point_keys(sample: Sample, prefix: str) -> list[str]:
    """Return the keys with this prefix whose arrays have one row per point."""
    if (reference := sample.get(f"{prefix}_points")) is None:
        return []
    # Called for every sample of every batch: `len` of a tensor takes ten times as long as its shape.
    start, rows = f"{prefix}_", reference.shape[0]
    return [key for key, value in sample.items() if key.startswith(start) and value.ndim and value.shape[0] == rows]


def pad_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Pad the samples to equal numbers of points in each set (surface, volume, geometry, …).

    If the samples of a batch have different numbers of points in a set, append zeros to the set's arrays and add
    `<set>_mask` (N,), which is True for real points; otherwise add nothing.
    """
    padded = [dict(sample) for sample in samples]
    for points in [key for key in samples[0] if key.endswith("_points")]:
        counts = [len(sample[points]) for sample in samples if points in sample]
        if len(counts) < len(samples) or min(counts) == max(counts):
            continue
        prefix, most = points.removesuffix("_points"), max(counts)
        # An unrelated array may have as many rows as points by chance in one sample, but not in every sample.
        keys = set.intersection(*(set(point_keys(sample, prefix)) for sample in samples))
        for sample, count in zip(padded, counts, strict=True):
            for key in keys:
                after = (0, 0) * (sample[key].ndim - 1) + (0, most - count)
                sample[key] = F.pad(sample[key], after)
            sample[mask_key(points)] = torch.arange(most) < count
    return padded


def mask_key(points: str) -> str:
    """Return the key of a set's mask from the key of its points."""
    return f"{points.removesuffix('_points')}_mask"


def mask_of(batch: dict[str, Tensor], points: str) -> Tensor | None:
    """Return the mask (B, N) of a set's real points; None if all are real."""
    return batch.get(mask_key(points))


def mean_of_points(values: Tensor, mask: Tensor | None) -> Tensor:
    """Return each sample's mean (B,) of values (B, N, C) over its real points and all channels."""
    if mask is None:
        return values.mean(dim=(1, 2))
    kept = values.masked_fill(~mask.unsqueeze(-1), 0)
    return kept.sum(dim=(1, 2)) / (mask.sum(dim=1) * values.shape[2])

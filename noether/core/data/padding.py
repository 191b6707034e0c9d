"""Pads samples of differing numbers of points to one batch, with masks of the real points."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from noether.core.data.points import Sample, point_keys


def pad_samples(samples: Sequence[Sample]) -> list[Sample]:
    """Returns the samples with equal numbers of points in each set (surface, volume, geometry, …).

    Where the samples of a batch differ in a set's points, zeros are appended to its arrays and `<set>_mask`
    (N,) says which points are real; where they do not differ, nothing is added.
    """
    padded = [dict(sample) for sample in samples]
    for points in [key for key in samples[0] if key.endswith("_points")]:
        counts = [len(sample[points]) for sample in samples if points in sample]
        if len(counts) < len(samples) or min(counts) == max(counts):
            continue
        prefix, most = points.removesuffix("_points"), max(counts)
        # By chance one sample's other arrays may have as many rows as it has points; not every sample's.
        keys = set.intersection(*(set(point_keys(sample, prefix)) for sample in samples))
        for sample, count in zip(padded, counts, strict=True):
            for key in keys:
                after = (0, 0) * (sample[key].ndim - 1) + (0, most - count)
                sample[key] = F.pad(sample[key], after)
            sample[mask_key(points)] = torch.arange(most) < count
    return padded


def mask_key(points: str) -> str:
    """The key of a set's mask, from the key of its points."""
    return f"{points.removesuffix('_points')}_mask"


def mask_of(batch: dict[str, Tensor], points: str) -> Tensor | None:
    """Which points of a set are real, (B, N) bool; None where all are."""
    return batch.get(mask_key(points))


def mean_of_points(values: Tensor, mask: Tensor | None) -> Tensor:
    """Each sample's mean (B,) of values (B, N, C) over its real points and all channels."""
    if mask is None:
        return values.mean(dim=(1, 2))
    kept = values.masked_fill(~mask.unsqueeze(-1), 0)
    return kept.sum(dim=(1, 2)) / (mask.sum(dim=1) * values.shape[2])

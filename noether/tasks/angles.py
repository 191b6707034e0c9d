"""Fields that are angles: a model has cosine and sine, users their angle, and errors are taken modulo the period."""

from math import pi

import torch
from torch import Tensor

from noether.config.task import FieldConfig


def in_units(field: FieldConfig, prediction: Tensor, truth: Tensor) -> tuple[Tensor, Tensor]:
    """Returns prediction and truth (…, C) as users have them; of an angle (…, 1), the prediction nearest to the truth.

    It may lie beyond the range by up to half a period, so that a difference is the error modulo the period.
    """
    if field.period is None:
        return prediction, truth
    length = field.period[1] - field.period[0]
    angle, own = (as_angle(values, field.period) for values in (prediction, truth))
    return angle - length * torch.round((angle - own) / length), own


def as_pair(angles: Tensor, period: tuple[float, float]) -> Tensor:
    """Returns angles (…, 1) as cosine and sine (…, 2)."""
    turns = 2 * pi * angles / (period[1] - period[0])
    return torch.cat([turns.cos(), turns.sin()], dim=-1)


def as_angle(pairs: Tensor, period: tuple[float, float]) -> Tensor:
    """Returns cosine and sine (…, 2) as angles (…, 1) in the range."""
    low, length = period[0], period[1] - period[0]
    turns = torch.atan2(pairs[..., 1:], pairs[..., :1]) / (2 * pi)
    return low + torch.remainder(turns * length - low, length)

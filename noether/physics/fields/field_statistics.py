"""Statistics of the training split that the fields task needs: scaling, boxes of points, ranges of parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import NotRequired

import numpy as np
import torch
from pydantic import FiniteFloat, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from noether.common.errors import RequestError

DOMAIN_MARGIN = 0.01
"""Margin of a domain that is derived from the training split's box: a share of the box's length, on every side."""

ABOVE = 10.0
"""A symmetric logarithm turns from linear to logarithmic at this multiple of the typical value at points. With 1
instead, small values are learned a little better, but the peaks, which dominate a relative L2 error, far worse."""

NOISE = 1e-9
"""Share of a vector or tensor below which a component is only rounding error of 0, such as z in a plane flow."""


@dataclass(frozen=True)
class Scaling:
    """The scaling of one key by channel: (x' − mean) / std, with x' = x or sign(x)·log(1 + |x|/s).

    A constant channel has std 0: its values are not divided, and its prediction is always the constant.
    """

    mean: list[FiniteFloat]
    std: list[FiniteFloat]
    log_scale: list[FiniteFloat] | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Scale physical values (…, C) for the model."""
        mean, std, log_scale = self._beside(values)
        if log_scale is not None:
            values = values.sign() * torch.log1p(values.abs() / log_scale)
        return (values - mean) / torch.where(std == 0, 1, std)

    def backward(self, values: Tensor) -> Tensor:
        """Convert the model's predictions (…, C) to physical units."""
        mean, std, log_scale = self._beside(values)
        values = values * std + mean
        if log_scale is not None:
            values = values.sign() * torch.expm1(values.abs()) * log_scale
        return values

    def _beside(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return mean, std and log scale (C,) on the device and in the dtype of `values`.

        The tensors are copied to the device once, because each copy waits until the GPU has finished all queued work.
        """
        if torch.compiler.is_exporting():
            return self._copied(values)  # A tensor of the trace is invalid after it.
        where = (values.device, values.dtype)
        if where not in self._placed:
            with torch.inference_mode(False):  # An inference tensor could not be used in a later backward pass.
                self._placed[where] = self._copied(values)
        return self._placed[where]

    @cached_property
    def _placed(self) -> dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def _copied(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        log_scale = None if self.log_scale is None else like.new_tensor(self.log_scale)
        return like.new_tensor(self.mean), like.new_tensor(self.std), log_scale


def without_noise(scaling: Scaling) -> Scaling:
    """Return a vector's or tensor's scaling with std 0 for components that are noise compared with the largest."""
    limit = NOISE * max(scaling.std)
    return replace(scaling, std=[0.0 if std < limit else std for std in scaling.std])


def log_scales(samples: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the scale s (C,) of the symmetric logarithm of each key; each sample has rows (n, C) by key.

    For values at points, s is ABOVE times the mean over samples of the median of |x|. For outputs of the whole case,
    which have one row, s is the mean of |x|.
    """
    medians: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        for key, rows in sample.items():
            scale = (ABOVE if len(rows) > 1 else 1) * np.median(np.abs(rows), axis=0)
            medians.setdefault(key, []).append(scale)
    found = {key: np.mean(values, axis=0) for key, values in medians.items()}
    return {key: np.where(value > 0, value, 1.0) for key, value in found.items()}


def log_scaled(values: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Return sign(x)·log(1 + |x|/s), or the values unchanged if there is no scale."""
    return values if scale is None else np.sign(values) * np.log1p(np.abs(values) / scale)


class Span(TypedDict):
    """The lowest and highest values and, for a set of points, the largest number of points in a sample."""

    count: NotRequired[int]
    low: list[FiniteFloat]
    high: list[FiniteFloat]


@dataclass
class Seen:
    """The box and largest number of points of each set, and the range of each parameter, in the training split.

    numbers: the ranges of the numbers by which coefficients are divided.
    """

    points: dict[str, Span] = field(default_factory=dict)
    parameters: dict[str, Span] = field(default_factory=dict)
    numbers: dict[str, Span] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Tensor], parameters: Iterable[str], numbers: Iterable[str] = ()) -> None:
        """Extend the ranges by one sample."""
        for key in (key for key in sample if key.endswith("_points")):
            points = sample[key].numpy()
            _widen(self.points, key, points, len(points))
        for known, keys in ((self.parameters, parameters), (self.numbers, (key for key in numbers if key in sample))):
            for key in keys:
                _widen(known, key, sample[key].numpy().reshape(1, -1))

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the corners (3,) of the box that holds every point."""
        boxes = list(self.points.values())
        return np.min([box["low"] for box in boxes], axis=0), np.max([box["high"] for box in boxes], axis=0)

    def domain(self) -> tuple[float, float]:
        """Return the lower corner and the length of a cube that holds every point with a margin."""
        low, high = self.box()
        length = float(high.max() - low.min()) or 1.0
        return float(low.min()) - DOMAIN_MARGIN * length, (1 + 2 * DOMAIN_MARGIN) * length


def _widen(known: dict[str, Span], key: str, rows: np.ndarray, count: int | None = None) -> None:
    before: Span = known.get(key, {"low": rows[0].tolist(), "high": rows[0].tolist()})
    known[key] = {
        "low": np.minimum(before["low"], rows.min(axis=0)).tolist(),
        "high": np.maximum(before["high"], rows.max(axis=0)).tolist(),
    }
    if count is not None:
        known[key]["count"] = max(before.get("count", 0), count)


SCALINGS = TypeAdapter(dict[str, Scaling])
SEEN = TypeAdapter(Seen)
"""Validators of the scalings and ranges in a checkpoint's task.json; they raise ValueError for invalid contents."""


def check_domain(low: np.ndarray, high: np.ndarray, domain_low: float, domain_length: float) -> None:
    """Raise RequestError if points whose box has the corners low and high (3,) lie outside the domain."""
    margin = 2 * DOMAIN_MARGIN * domain_length
    if low.min() >= domain_low - margin and high.max() <= domain_low + domain_length + margin:
        return
    extent = float(high.max() - low.min())
    in_mm = 0.02 * domain_length <= extent / 1000 <= 2 * domain_length
    raise RequestError(
        "points-outside-domain",
        "the points of the data set lie outside the domain" + (": they seem to be in millimetres" if in_mm else ""),
        seen=f"points from ({_three(low)}) to ({_three(high)})",
        expected=f"positions in m from {domain_low:g} to {domain_low + domain_length:g} on every axis",
        fix="give the samples in m: multiply the positions by 0.001"
        if in_mm
        else "task.domain_low=null task.domain_length=null      (the box of the training split)",
    )


def _three(values: np.ndarray) -> str:
    return ", ".join(f"{value:.4g}" for value in values)

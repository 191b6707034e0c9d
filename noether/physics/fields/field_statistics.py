"""The statistics of the training split that the fields task needs: scalings, boxes of points, parameter ranges."""

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
"""The margin on every side of a domain that is derived from the training split, as a share of the box's length."""

ABOVE = 10.0
"""A symmetric logarithm turns from linear to logarithmic at this multiple of the typical value at points. With a
multiple of 1, small values are learned slightly better, but peaks, which dominate a relative L2 error, far worse."""

NOISE = 1e-9
"""A component below this share of its vector or tensor is only the rounding error of 0, such as z in a plane flow."""


@dataclass(frozen=True)
class Scaling:
    """The scaling of an array by channel: (x' − mean) / std; x' is x or, with a log scale s, sign(x)·log(1 + |x|/s).

    A constant channel has std 0. Its values are not divided, and the physical prediction is always the constant.
    """

    mean: list[FiniteFloat]
    std: list[FiniteFloat]
    log_scale: list[FiniteFloat] | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Convert physical values (…, C) to scaled values for the model."""
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

        They are copied to a device only once, because each copy waits until the GPU has finished all queued work.
        """
        if torch.compiler.is_exporting():
            return self._copied(values)  # It is not cached, because a tensor of the trace is invalid after the trace.
        where = (values.device, values.dtype)
        if where not in self._placed:
            with torch.inference_mode(False):  # A later backward pass could not use an inference tensor.
                self._placed[where] = self._copied(values)
        return self._placed[where]

    @cached_property
    def _placed(self) -> dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def _copied(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        log_scale = None if self.log_scale is None else like.new_tensor(self.log_scale)
        return like.new_tensor(self.mean), like.new_tensor(self.std), log_scale


def without_noise(scaling: Scaling) -> Scaling:
    """Return the scaling of a vector or tensor with std 0 for each component that is only noise."""
    limit = NOISE * max(scaling.std)
    return replace(scaling, std=[0.0 if std < limit else std for std in scaling.std])


def log_scales(samples: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the scale s (C,) of the symmetric logarithm of each array; samples map keys to arrays (n, C).

    For values at points, s is ABOVE · the mean over samples of the median of |x|. For outputs of the whole case, which
    have one row, s is the mean of |x|.
    """
    medians: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        for key, rows in sample.items():
            scale = (ABOVE if len(rows) > 1 else 1) * np.median(np.abs(rows), axis=0)
            medians.setdefault(key, []).append(scale)
    found = {key: np.mean(values, axis=0) for key, values in medians.items()}
    return {key: np.where(value > 0, value, 1.0) for key, value in found.items()}


def log_scaled(values: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """Return sign(x)·log(1 + |x|/s) for values x and scale s; without a scale, return the values unchanged."""
    return values if scale is None else np.sign(values) * np.log1p(np.abs(values) / scale)


class Span(TypedDict):
    """The lowest and highest values; for a set of points, also `count`, the maximum number of points in a sample."""

    count: NotRequired[int]
    low: list[FiniteFloat]
    high: list[FiniteFloat]


@dataclass
class Seen:
    """What the training split covers: the box and maximum number of points of each set, and parameter ranges.

    numbers: the ranges of the numbers by which coefficients are divided.
    """

    points: dict[str, Span] = field(default_factory=dict)
    parameters: dict[str, Span] = field(default_factory=dict)
    numbers: dict[str, Span] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Tensor], parameters: Iterable[str], numbers: Iterable[str] = ()) -> None:
        """Extend the boxes and ranges to cover a further sample."""
        for key in (key for key in sample if key.endswith("_points")):
            points = sample[key].numpy()
            _widen(self.points, key, points, len(points))
        for known, keys in ((self.parameters, parameters), (self.numbers, (key for key in numbers if key in sample))):
            for key in keys:
                _widen(known, key, sample[key].numpy().reshape(1, -1))

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lower and upper corner (3,) of the box around all points."""
        boxes = list(self.points.values())
        return np.min([box["low"] for box in boxes], axis=0), np.max([box["high"] for box in boxes], axis=0)

    def domain(self) -> tuple[float, float]:
        """Return the lowest coordinate and the length of a cube that contains all points with a margin."""
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
"""A validator of the ranges in a checkpoint's task.json, like SCALINGS for scalings; invalid contents: ValueError."""


def check_domain(low: np.ndarray, high: np.ndarray, domain_low: float, domain_length: float) -> None:
    """Raise RequestError if the box from `low` to `high` (3,) does not lie in the domain."""
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

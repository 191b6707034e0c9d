"""What a task of fields learns from the training split: how to scale, where points lie, what parameters span."""

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
"""Share of the box of the training split by which a domain that is found from it is wider on every side."""

ABOVE = 10.0
"""Of the usual value at points, where a symmetric logarithm turns from linear to logarithmic. From 1, small values are
learned a little better, but the peaks, of which a relative L2 error is made, far worse."""

NOISE = 1e-9
"""Of a vector or tensor, the share below which a component is what arithmetic leaves of 0, as z of a plane flow."""


@dataclass(frozen=True)
class Scaling:
    """How one key is scaled, channel by channel: (x' − mean) / std, x' = x or sign(x)·log(1 + |x|/s).

    std is 0 of a channel that is constant: it is not divided, and what a model predicts of it is the constant.
    """

    mean: list[FiniteFloat]
    std: list[FiniteFloat]
    log_scale: list[FiniteFloat] | None = None

    def forward(self, values: Tensor) -> Tensor:
        """Physical (…, C) to what the model sees."""
        mean, std, log_scale = self._beside(values)
        if log_scale is not None:
            values = values.sign() * torch.log1p(values.abs() / log_scale)
        return (values - mean) / torch.where(std == 0, 1, std)

    def backward(self, values: Tensor) -> Tensor:
        """What the model predicts (…, C) to physical units."""
        mean, std, log_scale = self._beside(values)
        values = values * std + mean
        if log_scale is not None:
            values = values.sign() * torch.expm1(values.abs()) * log_scale
        return values

    def _beside(self, values: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Mean, std and log scale (C,) on the device and in the type of `values`.

        They are copied there once: a copy of Python numbers waits for all that a GPU still has to do.
        """
        if torch.compiler.is_exporting():
            return self._copied(values)  # A tensor of the trace means nothing after it.
        where = (values.device, values.dtype)
        if where not in self._placed:
            with torch.inference_mode(False):  # Else they could not be used in a backward pass later.
                self._placed[where] = self._copied(values)
        return self._placed[where]

    @cached_property
    def _placed(self) -> dict[tuple[torch.device, torch.dtype], tuple[Tensor, Tensor, Tensor | None]]:
        return {}

    def _copied(self, like: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        log_scale = None if self.log_scale is None else like.new_tensor(self.log_scale)
        return like.new_tensor(self.mean), like.new_tensor(self.std), log_scale


def without_noise(scaling: Scaling) -> Scaling:
    """Return the scaling of a vector or tensor, of which a component that is noise beside another is constant."""
    limit = NOISE * max(scaling.std)
    return replace(scaling, std=[0.0 if std < limit else std for std in scaling.std])


def log_scales(samples: Iterable[Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return each key's s of the symmetric logarithm, by channel, from the rows (n, C) of each key in the samples.

    Of values at points ABOVE times the mean over samples of the median of |x|; of outputs of the whole case, which have
    one row, the mean of |x|.
    """
    medians: dict[str, list[np.ndarray]] = {}
    for sample in samples:
        for key, rows in sample.items():
            scale = (ABOVE if len(rows) > 1 else 1) * np.median(np.abs(rows), axis=0)
            medians.setdefault(key, []).append(scale)
    found = {key: np.mean(values, axis=0) for key, values in medians.items()}
    return {key: np.where(value > 0, value, 1.0) for key, value in found.items()}


def log_scaled(values: np.ndarray, scale: np.ndarray | None) -> np.ndarray:
    """sign(x)·log(1 + |x|/s), or the values as they are where no scale is given."""
    return values if scale is None else np.sign(values) * np.log1p(np.abs(values) / scale)


class Span(TypedDict):
    """A box: its corners; of points also the most that a sample has."""

    count: NotRequired[int]
    low: list[FiniteFloat]
    high: list[FiniteFloat]


@dataclass
class Seen:
    """Where the points of each set lie and how many there are at most; what each parameter spans.

    numbers: what those of a case span that coefficients are divided by.
    """

    points: dict[str, Span] = field(default_factory=dict)
    parameters: dict[str, Span] = field(default_factory=dict)
    numbers: dict[str, Span] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Tensor], parameters: Iterable[str], numbers: Iterable[str] = ()) -> None:
        """Take one sample."""
        for key in (key for key in sample if key.endswith("_points")):
            points = sample[key].numpy()
            _widen(self.points, key, points, len(points))
        for known, keys in ((self.parameters, parameters), (self.numbers, (key for key in numbers if key in sample))):
            for key in keys:
                _widen(known, key, sample[key].numpy().reshape(1, -1))

    def box(self) -> tuple[np.ndarray, np.ndarray]:
        """The corners (3,) of the box that holds every point."""
        boxes = list(self.points.values())
        return np.min([box["low"] for box in boxes], axis=0), np.max([box["high"] for box in boxes], axis=0)

    def domain(self) -> tuple[float, float]:
        """The lower corner and the length of the cube that holds every point, a little wider."""
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
"""As a checkpoint's task.json holds them: ValueError where it holds something else."""


def check_domain(low: np.ndarray, high: np.ndarray, domain_low: float, domain_length: float) -> None:
    """Refuse points outside the domain, of which low and high (3,) are the corners of their box. RequestError."""
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

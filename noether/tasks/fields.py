"""Regression of physical fields at points: standardised for the model, scored in physical units."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from pydantic import FiniteFloat, TypeAdapter
from torch import Tensor
from typing_extensions import TypedDict

from noether.config.task import FieldConfig, ForceCoefficientConfig
from noether.data.loader import Batch
from noether.data.padding import mask_of, mean_of_points
from noether.errors import RequestError
from noether.tasks.base import Predictions, SampleFigures, Task

POSITION_SCALE = 1000.0
"""Length of the domain in the model's units: positions are embedded as sines of 0..1000 (UPT's recipe)."""


class _Statistics(TypedDict):
    mean: list[FiniteFloat]
    std: list[FiniteFloat]


class _PointsSeen(TypedDict):
    count: int
    low: list[FiniteFloat]
    high: list[FiniteFloat]


_STATISTICS = TypeAdapter(dict[str, _Statistics])
_POINTS = TypeAdapter(dict[str, _PointsSeen])


class FieldsTask(Task):
    """Regression of named fields at points.

    The model sees positions scaled isotropically to 0..1000 and inputs standardised per channel; it
    predicts standardised fields (B, N, C). The loss is the weighted sum over fields of the mean squared
    error in standardised units, so that predicting the mean costs about 1 per unit of weight.

    Args:
        fields: the output fields by their key in the samples, (N,) or (N, C) per sample.
        inputs: keys standardised as further inputs.
        domain_low, domain_length: the cube that holds every position, in m.
        scalars: force coefficients derived from a pressure field.

    Samples padded to a batch count their real points only.
    """

    reads_masks = True

    def __init__(
        self,
        fields: Mapping[str, Mapping[str, Any]],
        domain_low: float,
        domain_length: float,
        inputs: Iterable[str] = (),
        scalars: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.fields = {name: FieldConfig.model_validate(field) for name, field in fields.items()}
        self.scalars = {name: ForceCoefficientConfig.model_validate(scalar) for name, scalar in (scalars or {}).items()}
        self.inputs = tuple(inputs)
        self.domain_low, self.domain_length = domain_low, domain_length
        self.statistics: dict[str, tuple[list[float], list[float]]] = {}
        self.seen: dict[str, dict[str, Any]] = {}

    def fit(self, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Computes mean and standard deviation per channel over every point of the split, in float64.

        It also notes the numbers of points and where they lie: what a shape given later is held against.
        """
        self.seen = {}
        keys = (*self.fields, *self.inputs)
        count = dict.fromkeys(keys, 0)
        mean: dict[str, np.ndarray] = {}
        squares: dict[str, np.ndarray] = {}
        for sample in samples:
            self._see(sample)
            for key in keys:
                values = _by_channel(sample[key]).numpy().astype(np.float64)
                # Chan, Golub and LeVeque's merge of two sets' moments: no loss of digits for large means.
                size, sample_mean = len(values), values.mean(axis=0)
                total = count[key] + size
                delta = sample_mean - mean.get(key, np.zeros_like(sample_mean))
                spread = ((values - sample_mean) ** 2).sum(axis=0) + delta**2 * count[key] * size / total
                mean[key] = mean.get(key, np.zeros_like(sample_mean)) + delta * size / total
                squares[key] = squares.get(key, np.zeros_like(sample_mean)) + spread
                count[key] = total
        for key in keys:
            deviation = np.sqrt(squares[key] / count[key])
            # A constant channel is not scaled: it would turn rounding into a signal.
            deviation[deviation < 1e-12] = 1.0
            self.statistics[key] = (mean[key].tolist(), deviation.tolist())

    def _see(self, sample: Mapping[str, Tensor]) -> None:
        """Notes how many points of each set there are (at most) and the box that holds them."""
        for key in (key for key in sample if key.endswith("_points")):
            points = sample[key].numpy()
            known = self.seen.get(key, {"count": 0, "low": points[0].tolist(), "high": points[0].tolist()})
            self.seen[key] = {
                "count": max(known["count"], len(points)),
                "low": np.minimum(known["low"], points.min(axis=0)).tolist(),
                "high": np.maximum(known["high"], points.max(axis=0)).tolist(),
            }

    def state(self) -> dict[str, Any]:
        """Returns the statistics (mean and standard deviation per channel, in physical units) and the points seen."""
        statistics = {key: {"mean": m, "std": s} for key, (m, s) in self.statistics.items()}
        return {"statistics": statistics, "points": self.seen}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Takes back the statistics of a checkpoint. Raises ValueError where they are none."""
        statistics = _STATISTICS.validate_python(state["statistics"])
        self.statistics = {key: (item["mean"], item["std"]) for key, item in statistics.items()}
        points = _POINTS.validate_python(state.get("points", {}))
        self.seen = {key: dict(seen) for key, seen in points.items()}

    def prepare(self, batch: Batch) -> Batch:
        """Returns positions scaled to 0..1000, and fields and inputs standardised as (B, N, C)."""
        prepared = dict(batch)
        for key, value in batch.items():
            if key.endswith("_points"):
                prepared[key] = (value - self.domain_low) * (POSITION_SCALE / self.domain_length)
        for key in (*self.fields, *self.inputs):
            if key in batch:
                values = _by_channel(batch[key], batched=True)
                mean, std = self._statistics(key, values)
                prepared[key] = (values - mean) / std
        return prepared

    def loss(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Returns the weighted sum over fields of the standardised mean squared error, a scalar."""
        return self._sample_loss(predictions, batch).mean()

    def _check(self, predictions: Predictions, prepared: Batch) -> None:
        """A field of another shape would be broadcast, and trained on in silence."""
        if not isinstance(predictions, Mapping):
            raise _wrong_prediction("the model returns no dict", type(predictions).__name__, "{NAME: (B, N, C)}")
        for name in self.fields:
            if name not in predictions:
                raise _wrong_prediction(f"the model predicts no {name}", ", ".join(predictions) or "nothing", name)
            seen, expected = tuple(predictions[name].shape), tuple(prepared[name].shape)
            if seen != expected:
                raise _wrong_prediction(f"the model's {name} has the wrong shape", str(seen), f"{expected}")

    def _sample_loss(self, predictions: Predictions, prepared: Batch) -> Tensor:
        self._check(predictions, prepared)
        losses = []
        for name, field in self.fields.items():
            if field.weight:
                squares = (predictions[name].to(prepared[name].dtype) - prepared[name]).square()
                losses.append(field.weight * mean_of_points(squares, mask_of(prepared, field.points)))
        return torch.stack(losses).sum(dim=0)

    def to_physical(self, predictions: Predictions) -> Predictions:
        """Returns predictions, of all fields or of some, in physical units, (B, N, C)."""
        physical = {}
        for name in (name for name in self.fields if name in predictions):
            mean, std = self._statistics(name, predictions[name])
            physical[name] = predictions[name] * std + mean
        return physical

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleFigures:
        """Returns per sample: the loss, each field's errors in physical units, each scalar and its truth."""
        figures = {"loss": self._sample_loss(predictions, self.prepare(batch))}
        physical = self.to_physical(predictions)
        truth = {name: _by_channel(batch[name], batched=True) for name in self.fields}
        for name, field in self.fields.items():
            mask = mask_of(batch, field.points)
            for figure, values in field_errors(physical[name], truth[name], mask).items():
                figures[f"{name}/{figure}"] = values
        for name, scalar in self.scalars.items():
            if any(key not in batch for key in scalar.needed_keys()):
                continue  # `missing_for` says which, beside the figures that there are
            integral = force_coefficient(truth[scalar.pressure], batch, scalar)
            figures[f"{name}/prediction"] = force_coefficient(physical[scalar.pressure], batch, scalar)
            figures[f"{name}/integral_of_truth"] = integral
            figures[f"{name}/truth"] = true_coefficient(batch, scalar) if scalar.truth else integral
        return figures

    def details(self, predictions: Predictions, batch: Batch) -> SampleFigures:
        """Returns what a final evaluation adds to `metrics`: sums for pooled errors, and errors by component.

        Names: `FIELD/squared_error` and `FIELD/squared_truth`, sums over points and channels, and
        `FIELD/COMPONENT/FIGURE` of vector fields, their components called x, y and z.
        """
        physical = self.to_physical(predictions)
        figures: SampleFigures = {}
        for name, field in self.fields.items():
            truth, mask = _by_channel(batch[name], batched=True), mask_of(batch, field.points)
            figures |= {f"{name}/{key}": sums for key, sums in squared_sums(physical[name], truth, mask).items()}
            for channel in range(truth.shape[2] if truth.shape[2] > 1 else 0):
                one = slice(channel, channel + 1)
                errors = field_errors(physical[name][..., one], truth[..., one], mask)
                figures |= {f"{name}/{component_name(channel, truth.shape[2])}/{key}": v for key, v in errors.items()}
        return figures

    def missing_for(self, scalar: str, sample: Mapping[str, Tensor]) -> list[str]:
        """Returns the keys that a scalar needs and samples lack."""
        return [key for key in self.scalars[scalar].needed_keys() if key not in sample]

    def summarise(self, figures: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Returns the split's figures: means over samples, and the largest of the largest errors."""
        return {
            name: float(np.max(values) if name.endswith("/max") else np.mean(values))
            for name, values in figures.items()
            if not name.endswith(("/prediction", "/truth", "/integral_of_truth", "/squared_error", "/squared_truth"))
        }

    def _statistics(self, key: str, like: Tensor) -> tuple[Tensor, Tensor]:
        mean, std = self.statistics[key]
        return like.new_tensor(mean), like.new_tensor(std)


def _wrong_prediction(summary: str, seen: str, expected: str) -> RequestError:
    return RequestError(summary, seen=seen, expected=expected, fix="mend the forward of model.kind, or task.fields")


def _by_channel(values: Tensor, *, batched: bool = False) -> Tensor:
    """Gives a scalar field its channel axis: (N,) → (N, 1); with `batched` (B, N) → (B, N, 1)."""
    return values.unsqueeze(-1) if values.ndim == (2 if batched else 1) else values


def field_errors(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> SampleFigures:
    """Returns each sample's errors of a field (B, N, C) in its own unit, over its real points.

    relative_l2: norm of the error over norm of the truth, over all points and channels.
    mse, mae, max: over all points and channels.
    mask: (B, N), False for padding, where the truth is 0 whatever is predicted; None: no padding.
    """
    error = _error_of(prediction, truth, mask)
    norm = truth.double().flatten(1).norm(dim=1)
    return {
        "relative_l2": error.flatten(1).norm(dim=1) / norm,
        "mse": mean_of_points(error.square(), mask),
        "mae": mean_of_points(error.abs(), mask),
        "max": error.abs().amax(dim=(1, 2)),
    }


def squared_sums(prediction: Tensor, truth: Tensor, mask: Tensor | None = None) -> SampleFigures:
    """Returns the parts of a pooled error, squared_error and squared_truth: each sample's sums over points, channels.

    prediction, truth: (B, N, C). mask: (B, N), as of `field_errors`.
    """
    error = _error_of(prediction, truth, mask)
    return {"squared_error": error.square().sum(dim=(1, 2)), "squared_truth": truth.double().square().sum(dim=(1, 2))}


def _error_of(prediction: Tensor, truth: Tensor, mask: Tensor | None) -> Tensor:
    error = prediction.double() - truth.double()
    return error if mask is None else error.masked_fill(~mask.unsqueeze(-1), 0)


def force_coefficient(pressure: Tensor, batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Returns −∮ p (n·d) dA / (q A_ref) for each sample, (B,); of a moment −∮ p (x × n)·d dA / (q A_ref L).

    pressure (B, N, 1) in Pa, points and outward normals (B, N, 3), areas (B, N) in m², 0 where a point is padding.
    """
    direction = pressure.new_tensor(scalar.direction).double()
    vectors = batch[scalar.normals].double()
    if scalar.moment:
        vectors = torch.linalg.cross(batch[scalar.points].double(), vectors)
    force = -(pressure.double().squeeze(-1) * (vectors @ direction) * batch[scalar.areas].double()).sum(dim=1)
    return force / _reference(batch, scalar)


def true_coefficient(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Returns the true coefficient (B,) that the samples give: as such, or as a force or moment (B, 3)."""
    assert scalar.truth is not None
    truth = batch[scalar.truth].double()
    if truth.ndim == 2 and truth.shape[1] == 3:
        return truth @ truth.new_tensor(scalar.direction) / _reference(batch, scalar)
    return batch[scalar.truth].reshape(-1)


def _reference(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    area = batch[scalar.reference_area].double().reshape(-1)
    return scalar.dynamic_pressure * area * (scalar.reference_length if scalar.moment else 1.0)


def component_name(channel: int, channels: int) -> str:
    """Returns what a channel of a vector field is called: x, y or z, else its number."""
    return "xyz"[channel] if channels == 3 else str(channel)

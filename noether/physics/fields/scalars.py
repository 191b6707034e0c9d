"""Scalars of a case: force coefficients, which are integrated from fields, their errors, and a loss for forces."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from noether.common.errors import RequestError
from noether.core.data.moments import Moments
from noether.core.tasks.base import by_channel
from noether.physics.settings import ForceCoefficientConfig
from noether.runs.metrics import SCALAR_PARTS, Metric

if TYPE_CHECKING:
    from noether.physics.fields.fields import FieldsTask

Batch = Mapping[str, Tensor]


def force_coefficient(fields: Batch, batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Return ∮ (−p n + τ)·d dA / (q A_ref) for each sample, (B,); for a moment ∮ x × (−p n + τ)·d dA / (q A_ref L).

    fields: by name, the pressure p (B, N) or (B, N, 1) in Pa, and the wall shear stress τ (B, N, 3) in Pa with which
    the air pulls on the wall. Without τ, the scalar uses only pressure.
    batch: points and outward normals (B, N, 3), areas (B, N) in m², which are 0 at padding, and divisors.
    """
    return _force(fields, batch, scalar) / _reference(batch, scalar)


def mean_force(fields: Batch, batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Return the force or moment (B,) over dynamic pressure times total area; arguments as in `force_coefficient`."""
    area = batch[scalar.areas].double().sum(dim=1)
    return _force(fields, batch, scalar) / (_dynamic_pressure(batch, scalar) * area)


def _force(fields: Batch, batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Return the component of the force (N) or moment (N·m) in the scalar's direction, (B,)."""
    traction = -by_channel(fields[scalar.pressure], batched=True).double() * batch[scalar.normals].double()
    if scalar.shear is not None:
        traction = traction + fields[scalar.shear].double()
    if scalar.moment:
        traction = torch.linalg.cross(batch[scalar.points].double(), traction)
    return (_along(traction, scalar) * batch[scalar.areas].double()).sum(dim=1)


def true_coefficient(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    """Return the true coefficient (B,). Samples contain the coefficient itself, or the force or moment (B, 3)."""
    assert scalar.truth is not None
    truth = batch[scalar.truth].double()
    if truth.ndim == 2 and truth.shape[1] == 3:
        return _along(truth, scalar) / _reference(batch, scalar)
    return batch[scalar.truth].reshape(-1)


def _along(vectors: Tensor, scalar: ForceCoefficientConfig) -> Tensor:
    """Return the component of vectors (…, 3) in the scalar's direction, (…,).

    The direction is a tuple of Python numbers, because a tensor would be copied synchronously to the GPU in each batch.
    """
    x, y, z = vectors.unbind(-1)
    return x * scalar.direction[0] + y * scalar.direction[1] + z * scalar.direction[2]


def _reference(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor:
    area = batch[scalar.reference_area].double().reshape(-1)
    return _dynamic_pressure(batch, scalar) * area * (scalar.reference_length if scalar.moment else 1.0)


def _dynamic_pressure(batch: Batch, scalar: ForceCoefficientConfig) -> Tensor | float:
    if not isinstance(scalar.dynamic_pressure, str):
        return scalar.dynamic_pressure
    assert scalar.density is not None  # The settings require a density if each case has a speed.
    return 0.5 * scalar.density * batch[scalar.dynamic_pressure].double().reshape(-1).square()


Scalars = Mapping[str, ForceCoefficientConfig]
PHYSICAL = "physical_"
"""The prefix, in a prepared batch, of the keys of unscaled arrays: points, areas, normals and divisors."""


class ForceLoss:
    """A loss: the squared error of each force or moment, in standard deviations of the training split, times a weight.

    Small field errors do not guarantee a small drag error, because drag is a small difference of large pressures. The
    loss uses the mean force at the drawn points, divided by their area and the dynamic pressure. Its expectation is the
    same for any number of points, so it estimates the mean force on the whole surface.

    weight: weight of each force, where the default weight of a field is 1; 0: no loss for forces.
    """

    def __init__(self, weight: float) -> None:
        self.weight = weight
        self.deviation: dict[str, float] = {}
        self._moments: dict[str, Moments] = {}

    def check(self, scalars: Scalars, keys: Iterable[str]) -> None:
        """Raise RequestError if the weight is not 0 but there are no forces or samples lack their arrays."""
        have = set(keys)
        absent = sorted({key for scalar in scalars.values() for key in scalar.needed_keys() if key not in have})
        if self.weight and (absent or not scalars):
            raise RequestError(
                "forces-not-known",
                "the loss cannot include forces for this data set",
                seen=f"samples without {', '.join(absent)}" if absent else "no force coefficient",
                expected="samples with the keys that task.scalars names, or cases whose map has forces and axes",
                fix="task.force_weight=0",
            )

    def add(self, sample: Mapping[str, Tensor], scalars: Scalars) -> None:
        """Add one training sample to the statistics."""
        for name, scalar in scalars.items() if self.weight else ():
            one = {key: sample[key][None] for key in (*scalar.needed_keys(), *scalar.fields)}
            value = mean_force(one, one, scalar)
            self._moments.setdefault(name, Moments(1)).add(value.numpy().reshape(1, 1))

    def fit(self) -> None:
        """Compute the standard deviations over the added samples; drop each force that is equal in all samples."""
        self.deviation = {name: float(own.deviation[0]) for name, own in self._moments.items()}
        self.deviation = {name: value for name, value in self.deviation.items() if value > 1e-12}
        self._moments = {}

    def kept(self, batch: Mapping[str, Tensor], scalars: Scalars) -> dict[str, Tensor]:
        """Return the unscaled arrays of a batch, which `errors` needs in the prepared batch."""
        needed = {key for name in self.deviation for key in scalars[name].needed_keys()}
        return {PHYSICAL + key: batch[key] for key in needed if key in batch}

    def errors(self, differences: Mapping[str, Tensor], prepared: Mapping[str, Tensor], scalars: Scalars) -> Tensor:
        """Return the loss of each sample, (B,); `differences` are the fields' errors (B, N, C) in physical units."""
        batch = {key.removeprefix(PHYSICAL): value for key, value in prepared.items() if key.startswith(PHYSICAL)}
        terms = [
            (mean_force(differences, batch, scalars[name]) / deviation).square()
            for name, deviation in self.deviation.items()
        ]
        return self.weight * torch.stack(terms).sum(dim=0).to(next(iter(differences.values())).dtype)


MEASURES = {
    "r2": Metric("r2", better="higher", label="R²", headline=True, score=True),
    "spearman": Metric("spearman", better="higher", label="Spearman", score=True),
    "mae": Metric("mae", better="lower", label="mean error"),
    "max": Metric("max", better="lower", label="largest error"),
    "floor_r2": Metric("floor_r2", label="R² of the true field", score=True),
    "floor_mae": Metric("floor_mae", label="mean error of the true field"),
}
"""The measures of how well a scalar is predicted; measures of error have the unit of the scalar."""
UNDEFINED = ("r2", "spearman", "mae", "max")
"""The measures that reports list without a value if a scalar cannot be measured."""


def scalar_metrics(name: str, unit: str) -> Iterator[Metric]:
    """Yield the metrics of a scalar; its unit is that of the metrics of error."""
    for key, measure in MEASURES.items():
        own = unit if key in ("mae", "max", "floor_mae") else ""
        yield replace(measure, name=f"{name}/{key}", unit=own, of=name, measure=key)


Measures = dict[str, float | None]
"""The measures of one scalar, by the keys of MEASURES; None if undefined."""


def measure_scalars(task: "FieldsTask", samples: Mapping[str, np.ndarray]) -> dict[str, tuple[Measures, str]]:
    """Return {scalar or output of the case: (measures over all samples, why measures are undefined or "")}."""
    labels = (label for name in task.case_fields for label in task.case_labels(name))
    found: dict[str, tuple[Measures, str]] = {}
    for name in (*task.scalars, *labels):
        prediction, truth, integral = (samples.get(f"{name}/{part}") for part in SCALAR_PARTS)
        if prediction is not None and truth is not None:
            has_floor = name in task.scalars and task.scalars[name].truth
            found[name] = measure_scalar(prediction, truth, integral if has_floor else None)
        elif name in task.scalars and (lacks := task.lacks(name)):
            note = f"it cannot be integrated: the samples hold no {', '.join(lacks)}"
            found[name] = dict.fromkeys(UNDEFINED), note
    return found


def scalar_facts(task: "FieldsTask", samples: Mapping[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """Return facts about each scalar and output, such as why a measure is undefined, or the reference area."""
    facts: dict[str, dict[str, Any]] = {}
    for name, (_, note) in measure_scalars(task, samples).items():
        facts[name] = {"note": note} if note else {}
        if (areas := samples.get(f"{name}/reference_area")) is not None:
            scalar, first = task.scalars[name], f" (first: {float(areas[0]):.3g} m²)" if len(areas) else ""
            facts[name] |= reference_facts(scalar, f"{scalar.reference_area.replace('_', ' ')} of each sample{first}")
    return facts


def reference_facts(scalar: ForceCoefficientConfig, area: str) -> dict[str, Any]:
    """Return the settings that define a force coefficient, with `area` as the description of its reference area."""
    return {
        "dynamic_pressure": scalar.dynamic_pressure,
        "density": scalar.density,
        "speed": scalar.speed,
        "reference_area": area,
        **({"shear": scalar.shear} if scalar.shear else {}),
        **({"reference_length": scalar.reference_length} if scalar.moment else {}),
    }


def measure_scalar(
    prediction: np.ndarray, truth: np.ndarray, integral_of_truth: np.ndarray | None
) -> tuple[Measures, str]:
    """Measure how well a scalar is predicted over the samples of a split.

    prediction, truth: (S,), the scalar of the predicted fields, and its true value.
    integral_of_truth: (S,), the scalar of the true fields at the same points, whose error no model can undercut. None:
    the truth is this integral, so the error of the integral is unknown.
    Return r2, spearman, mae and max of the error, and floor_r2 and floor_mae of the integral, each None if undefined.
    Also return the reason why measures are undefined, or "" if all are defined.
    """
    if lost := int((~np.isfinite(prediction)).sum()):
        note = f"it is undefined: the prediction is not a number for {lost} of {len(prediction)} samples"
        return dict.fromkeys(UNDEFINED), note
    error = np.abs(prediction - truth)
    found: Measures = {
        "r2": r_squared(prediction, truth),
        "spearman": spearman(prediction, truth) if varies(truth, error) else None,
        "mae": float(error.mean()),
        "max": float(error.max()),
    }
    if integral_of_truth is not None:
        found["floor_r2"] = r_squared(integral_of_truth, truth)
        found["floor_mae"] = float(np.abs(integral_of_truth - truth).mean())
    if not varies(truth, error):
        why = "the true value is the same for every sample" if len(truth) > 1 else "there is one sample"
        return found, f"R² and Spearman are undefined: {why}"
    note = "" if varies(prediction) else "Spearman is undefined: the predicted value is the same for every sample"
    return found, note


def varies(values: np.ndarray, error: np.ndarray | float = 0.0) -> bool:
    """Return whether values (S,) differ by more than rounding, which is judged by the values and by `error` (S,)."""
    # For example, the lift of bodies without lift is only rounding error and cannot be ranked.
    least = 1e-20 * (values**2).sum() + 1e-12 * np.square(error).sum()
    return float(((values - values.mean()) ** 2).sum()) > float(least)


def r_squared(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Return the coefficient of determination, 1 − Σ(y − ŷ)² / Σ(y − ȳ)², or None if the truth does not vary."""
    if not varies(truth, truth - prediction):
        return None
    return 1.0 - float(((truth - prediction) ** 2).sum()) / float(((truth - truth.mean()) ** 2).sum())


def spearman(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Return Spearman's rank correlation, or None if the prediction or the truth does not vary."""
    if not varies(truth) or not varies(prediction):
        return None
    return float(np.corrcoef(_ranks(prediction), _ranks(truth))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value (S,), with mean ranks for ties, without scipy.stats, whose import takes 0.4 s."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: np.ndarray = np.cumsum(count) - (count - 1) / 2
    return mean_rank[place]

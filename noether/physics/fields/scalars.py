"""How well single numbers of a case are predicted: force coefficients and outputs, from what is kept of samples."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.physics.settings import ForceCoefficientConfig
from noether.runs.metrics import SCALAR_PARTS, Metric

if TYPE_CHECKING:
    from noether.physics.fields.fields import FieldsTask

MEASURES = {
    "r2": Metric("r2", better="higher", label="R²", headline=True, score=True),
    "spearman": Metric("spearman", better="higher", label="Spearman", score=True),
    "mae": Metric("mae", better="lower", label="mean error"),
    "max": Metric("max", better="lower", label="largest error"),
    "floor_r2": Metric("floor_r2", label="R² of the true field", score=True),
    "floor_mae": Metric("floor_mae", label="mean error of the true field"),
}
"""What is computed of a number; a unit is that of the number."""
UNDEFINED = ("r2", "spearman", "mae", "max")
"""The measures that are there, without a value, of a number that is not known of every sample."""


def scalar_metrics(name: str, unit: str) -> Iterator[Metric]:
    """Yields the metrics of a number in a unit."""
    for key, measure in MEASURES.items():
        own = unit if key in ("mae", "max", "floor_mae") else ""
        yield replace(measure, name=f"{name}/{key}", unit=own, of=name, measure=key)


Measures = dict[str, float | None]
"""Of one number, by the keys of MEASURES; None: undefined."""


def measure_scalars(task: "FieldsTask", samples: Mapping[str, np.ndarray]) -> dict[str, tuple[Measures, str]]:
    """Returns {scalar or output of the case: its measures, why some are undefined}, from the values of every sample."""
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
    """Returns what the measures of a split refer to, by scalar or output: why one is undefined, the air."""
    facts: dict[str, dict[str, Any]] = {}
    for name, (_, note) in measure_scalars(task, samples).items():
        facts[name] = {"note": note} if note else {}
        if (areas := samples.get(f"{name}/reference_area")) is not None:
            scalar, first = task.scalars[name], f" (first: {float(areas[0]):.3g} m²)" if len(areas) else ""
            facts[name] |= reference_facts(scalar, f"{scalar.reference_area.replace('_', ' ')} of each sample{first}")
    return facts


def reference_facts(scalar: ForceCoefficientConfig, area: str) -> dict[str, Any]:
    """Returns what a force coefficient is made with; `area` says which reference area it is."""
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
    """Measures how well a number is predicted over the samples of a split.

    prediction: (S,) the number of the predicted fields.
    truth: (S,) its true value.
    integral_of_truth: (S,) the same integral over the true field: what no model can beat with these points; None where
    the truth is that integral, so that nothing is known of its error.

    Returned are r2, spearman, mae and max of the error, floor_r2 and floor_mae (of the true field's integral); and why
    some are undefined, which then are None, "" where none is.
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
    """Whether values (S,) differ by more than rounding, of them or of what the error (S,) is made of, so that they can
    be ranked: the lift of bodies without any is what arithmetic leaves of 0."""
    least = 1e-20 * (values**2).sum() + 1e-12 * np.square(error).sum()
    return float(((values - values.mean()) ** 2).sum()) > float(least)


def r_squared(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Returns the coefficient of determination, 1 − Σ(y − ŷ)² / Σ(y − ȳ)²; None where the truth does not vary."""
    if not varies(truth, truth - prediction):
        return None
    return 1.0 - float(((truth - prediction) ** 2).sum()) / float(((truth - truth.mean()) ** 2).sum())


def spearman(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Returns Spearman's rank correlation; None where either side does not vary."""
    if not varies(truth) or not varies(prediction):
        return None
    return float(np.corrcoef(_ranks(prediction), _ranks(truth))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the rank of each value (S,), equal ones sharing their mean rank; scipy.stats takes 0.4 s to import."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: np.ndarray = np.cumsum(count) - (count - 1) / 2
    return mean_rank[place]

"""How well single numbers of a case are predicted: force coefficients and outputs, from what is kept of samples."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from noether.config.task import ForceCoefficientConfig
from noether.runs.metrics import Metric

if TYPE_CHECKING:
    from noether.tasks.fields import FieldsTask

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
SCALAR_PARTS = ("prediction", "truth", "integral_of_truth")
"""What is kept of a number of each sample, `NAME/truth`; the last for force coefficients alone."""


def scalar_metrics(name: str, unit: str) -> Iterator[Metric]:
    """Yields the metrics of a number in a unit."""
    for key, measure in MEASURES.items():
        own = unit if key in ("mae", "max", "floor_mae") else ""
        yield replace(measure, name=f"{name}/{key}", unit=own, of=name, measure=key)


Measures = dict[str, float | None]
"""Of one number, by the keys of MEASURES; None: undefined."""


def measure_scalars(task: "FieldsTask", samples: Mapping[str, np.ndarray]) -> dict[str, Measures]:
    """Returns {scalar or output of the case: its measures}, from the values of every sample."""
    found: dict[str, Measures] = {}
    for name in _measured(task, samples):
        prediction, truth, integral = (samples.get(f"{name}/{part}") for part in SCALAR_PARTS)
        if prediction is None or truth is None:
            found[name] = dict.fromkeys(UNDEFINED)
        else:
            has_floor = name in task.scalars and task.scalars[name].truth
            found[name] = measure_scalar(prediction, truth, integral if has_floor else None)
    return found


def scalar_facts(
    task: "FieldsTask", samples: Mapping[str, np.ndarray], metrics: Mapping[str, float]
) -> dict[str, dict[str, Any]]:
    """Returns what the measures in a split's metrics refer to, by scalar or output: why one is undefined, the air."""
    facts: dict[str, dict[str, Any]] = {}
    for name in _measured(task, samples):
        prediction = samples.get(f"{name}/prediction")
        if prediction is None:
            note = f"it cannot be integrated: the samples hold no {', '.join(task.lacks(name))}"
        else:
            note = undefined_note(prediction, metrics[f"{name}/r2"], metrics[f"{name}/spearman"])
        facts[name] = {"note": note} if note else {}
        if name in task.scalars and prediction is not None:
            scalar, areas = task.scalars[name], samples[f"{name}/reference_area"]
            first = f" (first: {float(areas[0]):.3g} m²)" if len(areas) else ""
            facts[name] |= reference_facts(scalar, f"{scalar.reference_area.replace('_', ' ')} of each sample{first}")
    return facts


def _measured(task: "FieldsTask", samples: Mapping[str, np.ndarray]) -> list[str]:
    labels = (label for name in task.case_fields for label in task.case_labels(name))
    return [*task.scalars, *(label for label in labels if f"{label}/truth" in samples)]


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


def undefined_note(prediction: np.ndarray, r2: float, spearman: float) -> str:
    """Says why measures of predictions (S,) are undefined, which then are NaN; "": they are not."""
    if lost := int((~np.isfinite(prediction)).sum()):
        return f"it is undefined: the prediction is not a number for {lost} of {len(prediction)} samples"
    if np.isnan(r2):
        return "R² and Spearman are undefined: the true value is the same for every sample"
    return "Spearman is undefined: the predicted value is the same for every sample" if np.isnan(spearman) else ""


def measure_scalar(prediction: np.ndarray, truth: np.ndarray, integral_of_truth: np.ndarray | None) -> Measures:
    """Measures how well a number is predicted over the samples of a split.

    Args:
        prediction: (S,) the number of the predicted fields.
        truth: (S,) its true value.
        integral_of_truth: (S,) the same integral over the true field: what no model can beat with these points;
            None where the truth is that integral, so that nothing is known of its error.

    Returns:
        r2, spearman, mae and max of the error, floor_r2 and floor_mae (of the true field's integral).
        Those that are undefined, because the truth does not vary or a prediction is not a number, are None.
    """
    if not np.isfinite(prediction).all():
        return dict.fromkeys(UNDEFINED)
    error = np.abs(prediction - truth)
    found: Measures = {
        "r2": r_squared(prediction, truth),
        "spearman": spearman(prediction, truth),
        "mae": float(error.mean()),
        "max": float(error.max()),
    }
    if integral_of_truth is not None:
        found["floor_r2"] = r_squared(integral_of_truth, truth)
        found["floor_mae"] = float(np.abs(integral_of_truth - truth).mean())
    return found


def r_squared(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Returns the coefficient of determination, 1 − Σ(y − ŷ)² / Σ(y − ȳ)²; None where the truth is constant."""
    spread = float(((truth - truth.mean()) ** 2).sum())
    if len(truth) < 2 or spread <= 1e-20 * float((truth**2).sum()):
        return None
    return 1.0 - float(((truth - prediction) ** 2).sum()) / spread


def spearman(prediction: np.ndarray, truth: np.ndarray) -> float | None:
    """Returns Spearman's rank correlation; None where either side is constant."""
    if len(truth) < 2 or np.ptp(truth) == 0 or np.ptp(prediction) == 0:
        return None
    return float(np.corrcoef(_ranks(prediction), _ranks(truth))[0, 1])


def _ranks(values: np.ndarray) -> np.ndarray:
    """Returns the rank of each value (S,), equal ones sharing their mean rank; scipy.stats takes 0.4 s to import."""
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    mean_rank: np.ndarray = np.cumsum(count) - (count - 1) / 2
    return mean_rank[place]

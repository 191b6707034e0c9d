"""Coefficients and outputs of a case from predicted fields, as numbers and as text."""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from torch import Tensor

from noether.evaluation.shape_input import Shape
from noether.evaluation.trained import TrainedModel
from noether.runs.metrics import Metric
from noether.tasks.fields import FieldsTask
from noether.tasks.forces import force_coefficient


def scalar_values(
    trained: TrainedModel, shape: Shape, fields: Mapping[str, np.ndarray], parameters: Mapping[str, float | list[float]]
) -> dict[str, float]:
    """The outputs of the case by their labels, and for meshes the force coefficients of the predicted fields."""
    task = trained.task
    found: dict[str, float] = {}
    for name in task.case_fields:
        found |= {label: float(v) for label, v in zip(task.case_labels(name), np.atleast_1d(fields[name]), strict=True)}
    if shape.faces is None:
        return found
    surface = {"points": shape.points, "normals": shape.normals, "areas": shape.areas}
    tensors = {name: torch.from_numpy(value) for name, value in {**fields, **surface}.items()}
    given = {name: torch.as_tensor(np.asarray(value, np.float64)) for name, value in parameters.items()}
    for name in integrated(task, fields):
        found[name] = float(integrate(task, name, tensors, given, shape_area(task, shape)))
    return found


def output_text(task: FieldsTask, label: str, value: float) -> str:
    """Returns a value of a field, a coefficient or an output of the case with its unit, as metrics are written."""
    units = {name: field.unit for name, field in task.fields.items()}
    units |= {own: field.unit for name, field in task.case_fields.items() for own in task.case_labels(name)}
    return Metric(label, units.get(label, "")).text(value)


def integrated(task: FieldsTask, fields: Collection[str]) -> list[str]:
    """Returns the scalars that can be integrated from these fields and the parameters of a case."""
    have = {*fields, *task.parameters}
    needed = {name: (own.pressure, own.shear, own.dynamic_pressure) for name, own in task.scalars.items()}
    return [name for name, keys in needed.items() if {key for key in keys if isinstance(key, str)} <= have]


def integrate(
    task: FieldsTask, name: str, surface: Mapping[str, Tensor], parameters: Mapping[str, Tensor], area: float
) -> Tensor:
    """Returns a force coefficient (1,) of the fields on a surface.

    surface: fields, points, normals and areas (N,) or (N, C), of float64; area: of reference, unless a parameter says.
    """
    scalar = task.scalars[name]
    batch = {key: value.reshape(1, -1) for key, value in parameters.items()}
    batch |= {scalar.points: surface["points"][None], scalar.normals: surface["normals"][None]}
    batch |= {scalar.areas: surface["areas"][None]}
    batch.setdefault(scalar.reference_area, surface["areas"].new_full((1, 1), area))
    shear = None if scalar.shear is None else surface[scalar.shear][None]
    return force_coefficient(surface[scalar.pressure][None, :, None], batch, scalar, shear)


def shape_area(task: FieldsTask, shape: Shape) -> float:
    """Returns the frontal area of a mesh in m², which coefficients refer to."""
    return shape.frontal_area(tuple(task.space.get("wind", (0.0, 0.0, 1.0))))

"""Coefficients and outputs of a case from predicted fields, as numbers and as text."""

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noether.core.data.about import FRONTAL_WITHOUT_YAW
from noether.physics.fields.fields import FieldsTask
from noether.physics.fields.forces import force_coefficient
from noether.physics.predict.shape_input import Shape
from noether.physics.predict.trained import TrainedModel
from noether.runs.metrics import Metric


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
    numbers = case_numbers(task, shape, parameters)
    return found | {
        name: float(integrate(task, name, tensors, numbers))
        for name, absent in lacking(task, fields, numbers).items()
        if not absent
    }


def output_text(task: FieldsTask, label: str, value: float) -> str:
    """Returns a value of a field, a coefficient or an output of the case with its unit, as metrics are written."""
    units = {name: field.unit for name, field in task.fields.items()}
    units |= {own: field.unit for name, field in task.case_fields.items() for own in task.case_labels(name)}
    return Metric(label, units.get(label, "")).text(value)


def case_numbers(task: FieldsTask, shape: Shape, given: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the numbers of a case that its coefficients are divided by, by their keys, as far as they are known.

    Those that are given; else of a mesh a reference area by the rule of the data set; else what every case of the
    training split had.
    """
    found = {key: span["low"][0] for key, span in task.seen.numbers.items() if span["low"] == span["high"]}
    for key, rule in reference_areas(task, shape, given).items():
        wind, up = task.space.get("wind", (0.0, 0.0, 1.0)), np.asarray(task.space.get("up", (0.0, 1.0, 0.0)))
        found[key] = shape.frontal_area(shape.lengthwise(up) if rule == FRONTAL_WITHOUT_YAW else tuple(wind))
    return {**found, **given}


def reference_areas(task: FieldsTask, shape: Shape, given: Collection[str]) -> dict[str, str]:
    """Returns the reference areas that follow from a shape, by the data set's rule for each: none of points alone."""
    rules = {} if shape.faces is None else task.reference_areas
    return {key: rule for key, rule in rules.items() if key in task.numbers and key not in given}


def lacking(task: FieldsTask, fields: Collection[str], numbers: Collection[str]) -> dict[str, list[str]]:
    """Returns which fields, and numbers of the case, each scalar lacks; [] of one that can be integrated."""
    have = {*fields, *numbers}
    needed = {name: (own.pressure, own.shear, *own.numbers) for name, own in task.scalars.items()}
    return {name: [key for key in keys if key and key not in have] for name, keys in needed.items()}


def lacking_words(task: FieldsTask, shape: Shape, fields: Collection[str], given: Mapping[str, Any]) -> list[str]:
    """Says which scalars of a mesh are not integrated, and what would be needed."""
    if shape.faces is None:
        return []
    absent = lacking(task, fields, case_numbers(task, shape, given))
    return [
        f"{name.replace('_', ' ')} is not integrated, for which {', '.join(keys)} must be known"
        + (f": --set {keys[0]}=NUMBER" if keys[0] in task.numbers else "")
        for name, keys in absent.items()
        if keys
    ]


def integrate(task: FieldsTask, name: str, surface: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Tensor:
    """Returns a force coefficient (1,) of the fields on a surface.

    surface: fields, points, normals and areas (N,) or (N, C), of float64; numbers: of the case.
    """
    scalar = task.scalars[name]
    batch = {key: torch.as_tensor(value, dtype=torch.float64).reshape(1, -1) for key, value in numbers.items()}
    batch |= {scalar.points: surface["points"][None], scalar.normals: surface["normals"][None]}
    batch |= {scalar.areas: surface["areas"][None]}
    shear = None if scalar.shear is None else surface[scalar.shear][None]
    return force_coefficient(surface[scalar.pressure][None, :, None], batch, scalar, shear)

"""Predict fields and coefficients of a new shape with the model and the task of a checkpoint."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from noether.checkpoints.run_settings import ChosenModel
from noether.checkpoints.state import load_task_state, load_weights
from noether.common.dotted_path import code_granted
from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.schema import RunConfig
from noether.core.data.layout import FRONTAL_WITHOUT_YAW
from noether.core.data.loader import Batch, Dataset, to_device
from noether.core.data.order import SampleKey, fixed_rows
from noether.core.data.points import ANCHOR, GEOMETRY, KNOWN, PointSampler, Sample, shape_key
from noether.core.evaluate import predict_batch
from noether.core.models.build import build_model
from noether.core.precision import Precision, choose_precision
from noether.core.problem import place_model, point_draw
from noether.core.tasks.base import Predictions, Task, build_task, check_predictions
from noether.physics.cases.mesh_source import ShapePart
from noether.physics.fields.field_statistics import Span
from noether.physics.fields.fields import FieldsTask
from noether.physics.fields.scalars import force_coefficient
from noether.physics.models.points import PointModel
from noether.physics.predict.shape_input import Shape, as_trained, shown_by
from noether.runs.metrics import Metric

VOLUME_ANCHORS = 4096
PointSets = Mapping[str, np.ndarray]
"""Sets of points, each (N, 3), by name, such as `volume_points`."""
Parameters = Mapping[str, float | list[float]]
"""The parameters of a case by name; each is a number or a list of numbers."""


@dataclass(frozen=True)
class TrainedModel:
    """The model of a checkpoint, and the task that scales its inputs and outputs. It works without the data set."""

    config: RunConfig
    model: nn.Module
    task: FieldsTask
    device: torch.device
    precision: Precision

    def predict(self, batch: Batch, chunk_size: int | None) -> Predictions:
        """Return the scaled predictions of the model; the batch itself is in physical units."""
        return predict_batch(self.model, self.task, batch, self.precision, self.device, chunk_size)

    def draw(self, dataset: Dataset | None = None) -> PointSampler:
        """Return the run's sampler of points; if `dataset` stores its points in random order, a draw is a slice."""
        shuffled = getattr(dataset, "points_are_shuffled", False)
        return point_draw(self.config, self.task, self.model, shuffled=shuffled)

    @property
    def points_learned(self) -> int:
        """The maximum number of points that define the shape in a training sample."""
        seen = self.task.seen.points
        return int(seen[GEOMETRY if self.shape_set not in seen else self.shape_set]["count"])

    @property
    def shape_set(self) -> str:
        """The key of the set of points that defines a shape: the surface or, without a surface, the first set."""
        key = shape_key(self.task.seen.points)
        return "surface_points" if key in (None, GEOMETRY) else str(key)

    def part_of(self, key: str) -> ShapePart:
        """Return the part of a mesh file that contains a set's points: its faces or, for a solid, nodes or cells."""
        known = {"surface": {"kind": "surface"}, **self.task.space.get("sets", {})}
        own = known.get(key.removesuffix("_points"), {"kind": "points"})
        at = {"surface": "faces", "points": "points"}.get(own["kind"], own.get("at", "points"))
        return ShapePart(str(at), tuple(own.get("patches", ())), tuple(own.get("coordinates", ())))

    @property
    def axes(self) -> tuple[str, ...]:
        """The names of the sets of points at which fields are predicted, without "_points": surface, volume, …"""
        return tuple(name.removesuffix("_points") for name in self.task.layout().sets)

    def shape_batch(self, shape: Shape, others: PointSets, parameters: Parameters) -> Batch:
        """Return a batch with one sample in physical units: the shape as in training, and every point as a query.

        The geometry, and the anchors that some models read, come from as many points as a training sample has. The
        queries are all points of the shape and of the other sets.

        shape: the user's shape; arrays of its file are used as inputs at its points.
        others, parameters: further sets of points, and the parameters of the case.
        RequestError: a parameter or input that the model reads is missing, or a given parameter is not read.
        """
        thinned = as_trained(shape, shown_by(shape, self.points_learned))
        context, queries = (self.shape_tensors(own) for own in (thinned, shape))
        sample = self.whole_sample(context, queries, others, self.parameter_tensors(parameters))
        return {key: value[None].to(self.device, torch.float32) for key, value in sample.items()}

    def shape_draws(self, shape: Shape, others: PointSets, parameters: Parameters, count: int) -> Iterator[Sample]:
        """Yield `count` samples of a shape, drawn as in training; they share points only if the shape has too few."""
        draw, given, learned = self.draw(), self.parameter_tensors(parameters), self.points_learned
        every = shape if len(shape.points) == learned else as_trained(shape, shown_by(shape, count * learned))
        shown, size = self.shape_tensors(every), min(learned, len(every.points))
        order = torch.from_numpy(fixed_rows(len(every.points), len(every.points)))
        for number in range(count):
            rows = order[torch.arange(number * size, (number + 1) * size) % len(order)]
            context = {key: value[rows] for key, value in shown.items()}
            others_shown = self._other_sets(context[self.shape_set], others)
            yield draw.for_training(context | others_shown | given, SampleKey(sample=0, epoch=number))

    def whole_sample(self, context: Sample, queries: Sample, given: PointSets, parameters: Sample) -> Sample:
        """Return the complete input of the model, in float64 and physical units; it is differentiable.

        context: the points that show the shape, with their normals and inputs.
        queries: the points at which to predict, with their normals and inputs.
        given, parameters: further sets of points, each (N, 3), and the parameters of the case.
        """
        points = context[self.shape_set]
        context |= self._other_sets(points, given)
        shown = self.draw().for_evaluation(context)
        batch = {key: value for key, value in shown.items() if key not in context}
        if hasattr(self.model, "attend"):  # If training draws no points of a set, all its points are anchors.
            batch = {**{ANCHOR + key: value for key, value in context.items()}, **batch}
        batch |= queries
        for name, own in given.items():
            batch |= _set_tensors(name, torch.from_numpy(own), points)
        return batch | parameters

    @torch.no_grad()
    def predict_shape(self, batch: Batch, chunk_size: int) -> dict[str, np.ndarray]:
        """Return the fields (N,) or (N, C) in physical units, computed for `chunk_size` query points at a time.

        Outputs of the case are arrays () or (C,).

        RequestError: the batch lacks an input that the model reads, such as normals or enough points of the shape.
        """
        in_chunks = chunk_size if hasattr(self.model, "forward_in_chunks") else None
        fields = self.task.fields.items()
        asked = {name: batch[field.points].shape[:2] for name, field in fields if field.points in batch}
        asked |= dict.fromkeys(self.task.case_fields, torch.Size([1]))
        moved = to_device(batch, self.device, self.precision.weights)
        try:
            scaled = self.predict(moved, in_chunks)
        except ValueError as error:
            if not isinstance(self.model, PointModel):
                raise  # The error is in a user's own model, whose author needs the traceback.
            raise RequestError(
                "shape-lacks-inputs", "the shape lacks an input that the model reads", seen=str(error),
                expected="a mesh with faces, on which points and normals can be sampled",
            ) from error  # fmt: skip
        components = self.task.components
        check_predictions(scaled, {name: (*size, components[name]) for name, size in asked.items()}, "task.fields")
        physical = self.task.to_physical({name: scaled[name] for name in asked})
        arrays = {name: value[0].double().cpu().numpy() for name, value in physical.items()}
        return {name: value[..., 0] if value.shape[-1] == 1 else value for name, value in arrays.items()}

    def outside_training(self, parameters: Parameters) -> list[str]:
        """Return a warning for each parameter outside the training range. RequestError: as for `parameter_tensors`."""
        words = []
        for name, tensor in self.parameter_tensors(parameters).items():
            seen, unit = self.task.seen.parameters[name], self.task.parameters[name].unit
            values = np.atleast_1d(tensor.numpy())
            if not ((values < seen["low"]) | (values > seen["high"])).any():
                continue
            words.append(
                f"{name}={_numbers(values)} lies outside the training range, {_span(seen)} {unit}".rstrip()
                + ": the prediction extrapolates"
            )
        return words

    def parameter_tensors(self, given: Parameters) -> Sample:
        """Return the parameters that the model reads. Divisors of the coefficients are allowed in `given`.

        RequestError: a parameter is missing, is unknown, or has the wrong number of components.
        """
        known = self.task.parameters
        taken = {**known, **self.task.divisors}
        if unknown := [name for name in given if name not in taken]:
            near = nearest(unknown[0], taken)
            raise RequestError(
                "parameter-not-read", f"the model reads no parameter {unknown[0]}",
                seen=f"--set {unknown[0]}={given[unknown[0]]}",
                expected=f"one of {', '.join(taken)}" if taken else "no parameters",
                fix=f"--set {near}={given[unknown[0]]}" if near else f"leave out --set {unknown[0]}",
            )  # fmt: skip
        if missing := [name for name in known if name not in given]:
            spans = {name: self.task.seen.parameters[name] for name in missing}
            middle = {name: 0.5 * (np.array(span["low"]) + span["high"]) for name, span in spans.items()}
            raise RequestError(
                "parameter-missing",
                f"the model reads {', '.join(missing)}, which must be given",
                seen=", ".join(f"{name}={value}" for name, value in given.items()) or "no parameters",
                expected=", ".join(
                    f"{name} ({_span(span)} {known[name].unit}".rstrip() + ")" for name, span in spans.items()
                ),
                fix="--set " + ",".join(f"{name}={_numbers(value)}" for name, value in middle.items()),
            )
        tensors = {name: torch.as_tensor(np.asarray(value, np.float64)) for name, value in given.items()}
        for name, value in tensors.items():
            if value.numel() != (count := self.task.components.get(name, 1)):
                raise RequestError("input-components", f"{name} has the wrong number of components",
                                   seen=f"{value.numel()}", expected=f"{count}")  # fmt: skip
        return {name: value for name, value in tensors.items() if name in known}

    def shape_tensors(self, shape: Shape) -> Sample:
        """Return a shape's points, normals and inputs, which are arrays of its file. RequestError: one is missing."""
        own = self.shape_set.removesuffix("points")
        found = {self.shape_set: shape.points}
        if shape.normals.any():  # Points without faces have no normals; the model would read zeros as a direction.
            found[f"{own}normals"] = shape.normals
        for points, keys in self.task.layout().features.items():
            for key, width in keys.items():
                if key.partition("_")[2] in KNOWN:
                    continue  # noether computes normals and distances.
                name = next((name for name in (key, key.removeprefix(own)) if name in shape.values), None)
                if points != self.shape_set or name is None:
                    raise RequestError(
                        "input-missing", f"the model reads {key} at {points}",
                        seen=f"a shape with the arrays {', '.join(shape.values) or '(none)'}",
                        expected=f"an array {key} with {width} components at each point of the mesh",
                        fix=f"write {key} into the mesh file" if points == self.shape_set else "train without this key",
                    )  # fmt: skip
                found[key] = np.asarray(shape.values[name], np.float64).reshape(len(shape.points), -1)
        return {key: torch.from_numpy(np.asarray(value, np.float64)) for key, value in found.items()}

    def _other_sets(self, points: Tensor, given: PointSets) -> Sample:
        """Return the anchors of every set other than the shape's own set: at least VOLUME_ANCHORS points per set."""
        found: Sample = {}
        for name in self.task.layout().sets if hasattr(self.model, "attend") else ():
            own = given.get(name)
            if name != self.shape_set:
                enough = own is not None and len(own) >= VOLUME_ANCHORS
                anchors = torch.from_numpy(own) if own is not None and enough else self._points_about(name, points)
                found |= _set_tensors(name, anchors, points)
        return found

    def _points_about(self, name: str, surface: Tensor) -> Tensor:
        """Return anchors for a set with too few given points: half in the training box, and half near the shape."""
        seen = self.task.seen.points[name]
        count, rng = max(seen["count"], VOLUME_ANCHORS), np.random.default_rng(0)
        box = rng.uniform(seen["low"], seen["high"], (count // 2, 3))
        near = surface[rng.integers(len(surface), size=count - count // 2)]
        # The standard deviation of the distance is 0.2 m for a car about 4 m long.
        size = 0.2 * (surface.amax(dim=0) - surface.amin(dim=0)).max() / 4.0
        away = torch.from_numpy(rng.standard_normal(near.shape)) * (size if size > 0 else 0.2)
        return torch.cat([torch.from_numpy(box), near + away])

    def scalar_values(self, shape: Shape, fields: Mapping[str, np.ndarray], parameters: Parameters) -> dict[str, float]:
        """Return the outputs of the case by label and, for meshes, the force coefficients of the predicted fields."""
        found: dict[str, float] = {}
        for name in self.task.case_fields:
            values = np.atleast_1d(fields[name]).tolist()
            found |= dict(zip(self.task.case_labels(name), values, strict=True))
        if shape.faces is None:
            return found
        surface = {"points": shape.points, "normals": shape.normals, "areas": shape.areas}
        tensors = {name: torch.from_numpy(value) for name, value in {**fields, **surface}.items()}
        numbers = self.case_numbers(shape, parameters)
        return found | {
            name: float(self.integrate(name, tensors, numbers))
            for name, absent in self.lacking(fields, numbers).items()
            if not absent
        }

    def case_numbers(self, shape: Shape, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the known divisors of a case's coefficients, by key.

        A given value takes precedence over the reference area by the data set's rule, which needs a mesh; this area
        takes precedence over a value that all cases of the training split share.
        """
        found = {key: span["low"][0] for key, span in self.task.seen.numbers.items() if span["low"] == span["high"]}
        for key, rule in self.reference_areas(shape, given).items():
            wind = self.task.space.get("wind", (0.0, 0.0, 1.0))
            up = np.asarray(self.task.space.get("up", (0.0, 1.0, 0.0)))
            found[key] = shape.frontal_area(shape.lengthwise(up) if rule == FRONTAL_WITHOUT_YAW else tuple(wind))
        return {**found, **given}

    def reference_areas(self, shape: Shape, given: Collection[str]) -> dict[str, str]:
        """Return the data set's rules for reference areas that are not given; {} if the shape has no faces."""
        rules = {} if shape.faces is None else self.task.reference_areas
        return {key: rule for key, rule in rules.items() if key in self.task.divisors and key not in given}

    def lacking_words(self, shape: Shape, fields: Collection[str], given: Mapping[str, Any]) -> list[str]:
        """Return, for each scalar that cannot be integrated over the mesh, a warning that names the missing values."""
        if shape.faces is None:
            return []
        absent = self.lacking(fields, self.case_numbers(shape, given))
        return [
            f"{name.replace('_', ' ')} is not integrated: {', '.join(keys)} must be known"
            + (f": --set {keys[0]}=NUMBER" if keys[0] in self.task.divisors else "")
            for name, keys in absent.items()
            if keys
        ]

    @property
    def units(self) -> dict[str, str]:
        """The unit of each field and of each output of the case; coefficients have no unit."""
        units = {name: field.unit for name, field in self.task.fields.items()}
        for name, field in self.task.case_fields.items():
            units |= dict.fromkeys(self.task.case_labels(name), field.unit)
        return units

    def output_text(self, label: str, value: float) -> str:
        """Format a value of the output `label` with its unit, as metrics are formatted."""
        return Metric(label, self.units.get(label, "")).text(value)

    def lacking(self, fields: Collection[str], numbers: Collection[str]) -> dict[str, list[str]]:
        """Return, for each scalar, the keys of missing fields and divisors; [] if the scalar can be integrated."""
        have = {*fields, *numbers}
        needed = {name: (*own.fields, *own.divisors) for name, own in self.task.scalars.items()}
        return {name: [key for key in keys if key not in have] for name, keys in needed.items()}

    def integrate(self, name: str, surface: Mapping[str, Tensor], numbers: Mapping[str, Any]) -> Tensor:
        """Integrate the force coefficient `name` over a surface: (1,).

        surface: fields, points, normals and areas, (N,) or (N, C), in float64. numbers: the divisors of the case.
        """
        scalar = self.task.scalars[name]
        batch = {key: torch.as_tensor(value, dtype=torch.float64).reshape(1, -1) for key, value in numbers.items()}
        keys = {"points": scalar.points, "normals": scalar.normals, "areas": scalar.areas}
        batch |= {key: surface[name][None] for name, key in keys.items()}
        return force_coefficient({name: surface[name][None] for name in scalar.fields}, batch, scalar)


def load_model(chosen: ChosenModel, device: torch.device) -> tuple[Task, nn.Module, Precision]:
    """Build a run's task and model, of any kind, and load the checkpoint's weights and scaling into them."""
    config, precision = chosen.config, choose_precision(chosen.config.trainer, device)
    with code_granted(chosen.code):
        task = build_task(config.task.kind, **config.task.options())
        load_task_state(task, chosen.checkpoint)
        model = build_model(config.model.kind, task.layout(), **config.model.options())
    model = place_model(model, device, precision)
    load_weights(model, chosen.checkpoint, chosen.weights)
    return task, model.eval(), precision


def load_trained(chosen: ChosenModel, device: torch.device) -> TrainedModel:
    """Load a run's model of fields at points.

    RequestError: the run has another kind of task, or its checkpoint does not name the points of the training data.
    """
    config, checkpoint = chosen.config, chosen.checkpoint
    task, model, precision = load_model(chosen, device)
    if not isinstance(task, FieldsTask):  # Only a FieldsTask has the points, boxes and scaling that prediction needs.
        raise RequestError("needs-field-model", "predict and export need a model of fields at points",
                           seen=f"task.kind={config.task.kind}", expected="a run with task.kind=fields",
                           fix="noether evaluate RUN      (the metrics of a run of any task)")  # fmt: skip
    if shape_key(task.seen.points) is None:
        raise RequestError("training-points-unknown",
                           f"the checkpoint {checkpoint.path.name} has no record of the points of the training data",
                           seen="no points in task.json",
                           expected="a checkpoint of a data set with points")  # fmt: skip
    return TrainedModel(config, model, task, device, precision)


def _numbers(values: Iterable[float]) -> str:
    return " ".join(f"{value:.4g}" for value in values)


def _span(span: Span) -> str:
    return f"{_numbers(span['low'])} to {_numbers(span['high'])}"


def _set_tensors(name: str, points: Tensor, surface: Tensor) -> Sample:
    """Return points with their distance to the nearest surface point and the unit direction from this point."""
    nearest = np.asarray(cKDTree(surface.detach().numpy()).query(points.detach().numpy())[1])
    away, prefix = points - surface[nearest], name.removesuffix("_points")
    distance = torch.linalg.vector_norm(away, dim=-1)
    direction = away / distance.clamp(min=torch.finfo(torch.float32).tiny).unsqueeze(-1)
    return {name: points, f"{prefix}_sdf": distance, f"{prefix}_normals": direction}

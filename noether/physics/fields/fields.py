"""The task of predicting physical fields at points. It scales fields for the model and scores in physical units."""

from collections.abc import Iterable, Mapping
from math import nan
from typing import Any

import numpy as np
import torch
from torch import Tensor

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.section import FieldConfig
from noether.core.data.checks import OF_A_POINT, set_rows
from noether.core.data.layout import CASE, Layout, in_order
from noether.core.data.loader import Batch
from noether.core.data.moments import Moments
from noether.core.data.points import ANCHOR, mask_of, mean_of_points
from noether.core.tasks.angles import in_units
from noether.core.tasks.base import Evaluated, Predictions, SampleMetrics, Task, by_channel, check_predictions
from noether.physics.fields.field_errors import (
    Measured,
    component_name,
    field_errors,
    field_metrics,
    named,
    squared_sums,
    summarise_errors,
    weighted_errors,
    with_channel,
)
from noether.physics.fields.field_statistics import (
    NOISE,
    SCALINGS,
    SEEN,
    Scaling,
    Seen,
    check_domain,
    log_scaled,
    log_scales,
    without_noise,
)
from noether.physics.fields.scalars import (
    ForceLoss,
    force_coefficient,
    measure_scalars,
    scalar_facts,
    scalar_metrics,
    true_coefficient,
)
from noether.physics.settings import ForceCoefficientConfig, ParameterConfig
from noether.runs.metrics import Metric

POSITION_SCALE = 1000.0
"""Length of the domain in the model's units. As in UPT's recipe, positions of 0..1000 are embedded as sines."""


class FieldsTask(Task):
    """Regression of named fields at points, and of outputs of a whole case.

    The model reads positions scaled isotropically to 0..1000, and inputs and parameters standardised per channel. It
    predicts scaled fields (B, N, C) and outputs of the case (B, C). The loss is the weighted sum of the mean squared
    errors of all outputs in scaled units. A model that predicts the mean has a loss of about 1 per unit of weight.

    Args:
        fields: the outputs by their key in the samples. A sample has (N,) or (N, C) for a field at points, and () or
            (C,) for an output of the case. None: the outputs that the data set names.
        inputs: keys of further inputs at each point, which are standardised.
        domain_low, domain_length: the cube that contains every position, in m; None: from the training split.
        parameters: inputs of the whole case, () or (C,) per sample; None: the parameters that the data set names.
        scalars: force coefficients that are computed from the fields.
        force_weight: weight in the loss of the error of each force; the default weight of a field is 1.

    In padded samples, only the real points are used.
    """

    reads_masks = True
    baselines = True
    report_parts = ("errors", "cases", "scalars", "distributions")

    def __init__(
        self,
        fields: Mapping[str, Mapping[str, Any]] | None = None,
        domain_low: float | None = None,
        domain_length: float | None = None,
        inputs: Iterable[str] = (),
        scalars: Mapping[str, Mapping[str, Any]] | None = None,
        parameters: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        force_weight: float = 0.0,
    ) -> None:
        self._forces = ForceLoss(force_weight)
        self._given = (fields, parameters, scalars)
        self.inputs = tuple(inputs)
        self._domain = None if domain_low is None or domain_length is None else (domain_low, domain_length)
        self._take(fields or {}, parameters or {}, scalars or {})
        self.statistics: dict[str, Scaling] = {}
        self.seen = Seen()
        self.components: dict[str, int] = {}
        self.parts: dict[str, list[str]] = {}
        self.space: dict[str, Any] = {}
        self.reference_areas: dict[str, str] = {}
        self._keys: set[str] = set()

    def _take(self, fields: Mapping[str, Any], parameters: Mapping[str, Any], scalars: Mapping[str, Any]) -> None:
        every = {name: FieldConfig.model_validate(field) for name, field in fields.items()}
        self.fields = {name: field for name, field in every.items() if field.points != CASE}
        self.case_fields = {name: field for name, field in every.items() if field.points == CASE}
        self.parameters = {name: ParameterConfig.model_validate(about) for name, about in parameters.items()}
        self.scalars = {name: ForceCoefficientConfig.model_validate(scalar) for name, scalar in scalars.items()}

    @property
    def outputs(self) -> dict[str, FieldConfig]:
        """The fields at points and the outputs of the case."""
        return {**self.fields, **self.case_fields}

    @property
    def truths(self) -> tuple[str, ...]:
        """The keys of the outputs."""
        return tuple(self.outputs)

    predicted = truths

    @property
    def periods(self) -> dict[str, tuple[float, float]]:
        """The ranges of the fields that are angles."""
        return {name: field.period for name, field in self.fields.items() if field.period}

    @property
    def case_inputs(self) -> tuple[str, ...]:
        """The keys of the parameters."""
        return tuple(self.parameters)

    @property
    def divisors(self) -> dict[str, None]:
        """The keys of the numbers by which a case's coefficients are divided, without duplicates."""
        return dict.fromkeys(key for scalar in self.scalars.values() for key in scalar.divisors)

    @property
    def domain(self) -> tuple[float, float]:
        """The lowest coordinate and the length of the domain in m, from the configuration or the training split."""
        return self._domain or self.seen.domain()

    def examine(self, sample: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Complete the configuration from the data set's description `about`, and check a sample against it."""
        self._take(*describe(self._given, about, sample))
        self.parts, self.space = dict(about.get("parts", {})), dict(about.get("space", {}))
        self.reference_areas = dict(about.get("reference_areas", {}))
        self._keys = set(sample)
        check_keys(sample, self.outputs, self.inputs, self.parameters)
        check_columns(sample, self.fields, self.inputs)
        self._forces.check(self.scalars, sample)
        for name, field in self.outputs.items():
            self.components[name] = components_of(name, sample[name], field)
        labels = [label for name in self.case_fields for label in self.case_labels(name)]
        check_names([*self.fields, *labels], self.scalars)
        self.components |= {key: self._rows(sample, key).shape[1] for key in (*self.inputs, *self.parameters)}

    def layout(self) -> Layout:
        """Return the layout: the fields and features of each set of points, and parameters and outputs of the case."""
        outputs: dict[str, dict[str, int]] = {}
        for name, field in self.fields.items():
            outputs.setdefault(field.points, {})[name] = self.components[name]
        features: dict[str, dict[str, int]] = {}
        for key in self.inputs:
            points = next((one for one in outputs if key.startswith(one.removesuffix("points"))), None)
            if points is not None:
                features.setdefault(points, {})[key] = self.components[key]
        parameters = {key: self.components[key] for key in self.parameters}
        return Layout(in_order(outputs), features, parameters, {k: self.components[k] for k in self.case_fields})

    def fit(self, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Compute the mean and standard deviation per channel over every point of the training split, in float64.

        Also record the number of points and the box of each set, and the range of each parameter; predictions compare
        a user's shape with them. `samples` is iterated twice if a field has logarithmic scaling.

        RequestError: points lie outside the configured domain.
        """
        self.seen = Seen()
        decades = [name for name, own in self.outputs.items() if own.scaling == "symmetric_log"]
        logs = log_scales({key: self._rows(sample, key) for key in decades} for sample in (samples if decades else ()))
        moments: dict[str, Moments] = {}
        for sample in samples:
            self.seen.add(sample, self.parameters, self.divisors)
            self._forces.add(sample, self.scalars)
            for key in (*self.outputs, *self.inputs, *self.parameters):
                values = self._rows(sample, key)
                moments.setdefault(key, Moments(values.shape[1])).add(log_scaled(values, logs.get(key)))
        if self.seen.points and self._domain is not None:
            check_domain(*self.seen.box(), *self._domain)
        self._forces.fit()
        log_scale = {key: scale.tolist() for key, scale in logs.items()}
        self.statistics = {key: Scaling(own.mean.tolist(), own.spread.tolist(), log_scale.get(key))
                           for key, own in moments.items()}  # fmt: skip
        self.statistics |= {key: without_noise(own) for key, own in self.statistics.items() if key in self.fields}
        self.components = {key: len(scaling.mean) for key, scaling in self.statistics.items()}

    def _rows(self, sample: Mapping[str, Tensor], key: str) -> np.ndarray:
        """Return the values of a sample as rows: (N, C) for values at points, (1, C) for values of the case."""
        of_case = key in self.case_fields or key in self.parameters
        values = with_channel(sample[key][None]) if of_case else by_channel(sample[key])
        return values.numpy().astype(np.float64)

    def state(self) -> dict[str, Any]:
        """Return the scaling of each key, the ranges of the training split and the description of the data set.

        Before `fit` is called, return {}.
        """
        if not self.statistics:
            return {}
        return {
            "statistics": SCALINGS.dump_python(self.statistics, exclude_none=True),
            **SEEN.dump_python(self.seen),
            "described": {
                "fields": {
                    name: own.model_dump(exclude=set() if own.period else {"period"})
                    for name, own in self.outputs.items()
                },
                "parameters": {name: own.model_dump() for name, own in self.parameters.items()},
                "scalars": {name: own.model_dump() for name, own in self.scalars.items()},
            },
            "parts": self.parts,
            "space": self.space,
            "reference_areas": self.reference_areas,
            **({"force_deviation": self._forces.deviation} if self._forces.weight else {}),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state from a checkpoint.

        ValueError: the state does not fit this task.
        """
        self.statistics = SCALINGS.validate_python(state["statistics"])
        known, self.components = self.components, {key: len(own.mean) for key, own in self.statistics.items()}
        self.seen = SEEN.validate_python({key: state.get(key, {}) for key in ("points", "parameters", "numbers")})
        if described := state.get("described"):
            self._take(**described)
        self.parts, self.space = dict(state.get("parts", {})), dict(state.get("space", {}))
        self.reference_areas = dict(state.get("reference_areas", self.reference_areas))
        self._forces.deviation = {name: float(value) for name, value in state.get("force_deviation", {}).items()}
        if lacking := {*self.outputs, *self.inputs, *self.parameters} - self.statistics.keys():
            raise ValueError(f"no statistics for {', '.join(sorted(lacking))}")
        for key, own in self.statistics.items():
            if {len(own.std), len(own.log_scale or own.mean), known.get(key, len(own.mean))} != {len(own.mean)}:
                raise ValueError(f"the statistics of {key} do not have {known.get(key, len(own.mean))} components")

    def prepare(self, batch: Batch) -> Batch:
        """Scale the batch for the model: positions to 0..1000; fields and inputs as (B, N, C), parameters as (B, C)."""
        prepared = {**batch, **self._forces.kept(batch, self.scalars)}
        low, length = self.domain
        for key, value in batch.items():
            if key.endswith("_points"):
                prepared[key] = (value - low) * (POSITION_SCALE / length)
        for key in (*self.fields, *self.inputs, *(ANCHOR + key for key in self.inputs)):
            if key in batch:
                scaling = self.statistics[key.removeprefix(ANCHOR)]
                prepared[key] = scaling.forward(by_channel(batch[key], batched=True))
        for key in (*self.case_fields, *self.parameters):
            if key in batch:
                prepared[key] = self.statistics[key].forward(with_channel(batch[key]))
        return prepared

    def loss(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Return a scalar: the weighted sum of all outputs' scaled mean squared errors, plus the force terms."""
        return self._sample_loss(predictions, batch).mean()

    def _sample_loss(self, predictions: Predictions, prepared: Batch) -> Tensor:
        shapes = {name: tuple(prepared[name].shape) for name in self.outputs}
        check_predictions(predictions, shapes, "task.fields; a model with an argument `layout` receives the fields")
        losses = []
        for name, field in self.outputs.items():
            if field.weight:
                squares = (predictions[name].to(prepared[name].dtype) - prepared[name]).square()
                mean = squares.mean(dim=1) if name in self.case_fields else mean_of_points(
                    squares, mask_of(prepared, field.points)
                )  # fmt: skip
                losses.append(field.weight * mean)
        if self._forces.deviation:
            of = {name for scalar in self.scalars.values() for name in scalar.fields}
            true, found = self.to_physical({name: prepared[name] for name in of}), self.to_physical(predictions)
            losses.append(self._forces.errors({name: found[name] - true[name] for name in of}, prepared, self.scalars))
        return torch.stack(losses).sum(dim=0)

    def to_physical(self, predictions: Predictions) -> Predictions:
        """Convert the given predictions of outputs to physical units: (B, N, C) and (B, C)."""
        if isinstance(predictions, Evaluated) and predictions.physical is not None:
            return predictions.physical
        there = (name for name in self.outputs if name in predictions)
        physical = {name: self.statistics[name].backward(predictions[name]) for name in there}
        if isinstance(predictions, Evaluated):
            predictions.physical = physical
        return physical

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Return, for each sample, the loss, the errors of fields in physical units, and scalars with their truths."""
        loss = {"loss": self._sample_loss(predictions, self.prepare(batch))}
        return loss | self.physical_metrics(self.to_physical(predictions), batch)

    def physical_metrics(self, physical: Predictions, batch: Batch) -> SampleMetrics:
        """Return the metrics, except the loss, of predictions in physical units."""
        measured: Measured = {}
        for name, field in self.fields.items():
            both = in_units(field, physical[name], by_channel(batch[name], batched=True))
            measured[name] = field_errors(*both, mask_of(batch, field.points))
        return named(measured | self.case_values(physical, batch))

    def case_values(self, physical: Predictions, batch: Batch) -> Measured:
        """Return the prediction and the truth of each output of the case and of each scalar."""
        truth = {name: by_channel(batch[name], batched=True) for name in self.fields}
        measured: Measured = {}
        for name in self.case_fields:
            own = with_channel(batch[name])
            for channel, label in enumerate(self.case_labels(name)):
                measured[label] = {"prediction": physical[name][:, channel], "truth": own[:, channel]}
        for name, scalar in self.scalars.items():
            if any(key not in batch for key in scalar.needed_keys()):
                continue  # The method `lacks` returns the missing keys.
            integral, predicted = (force_coefficient(of, batch, scalar) for of in (truth, physical))
            measured[name] = {
                "prediction": predicted,
                "truth": true_coefficient(batch, scalar) if scalar.truth else integral,
                "integral_of_truth": integral,
                "reference_area": batch[scalar.reference_area].reshape(-1),
            }
        return measured

    def final_metrics(self, physical: Predictions, batch: Batch) -> SampleMetrics:
        """Return the metrics of each field that only a final evaluation computes.

        squared_error and squared_truth are sums over points and channels. weighted_… exists if samples have areas or
        volumes, and `on PART/squared_…` for each named part of a set. COMPONENT/… exists for each component; its
        relative_l2 is NaN if the component is only noise compared with the whole vector.
        """
        measured: Measured = {}
        for name, field in self.fields.items():
            mask = mask_of(batch, field.points)
            predicted, truth = in_units(field, physical[name], by_channel(batch[name], batched=True))
            found = squared_sums(predicted, truth, mask)
            if (sizes := self.size_key(name, batch)) is not None:
                found |= weighted_errors(predicted, truth, batch[sizes], mask)
            for channel in range(truth.shape[2] if truth.shape[2] > 1 else 0):
                one, label = slice(channel, channel + 1), component_name(channel, truth.shape[2], field.component_names)
                of_one = field_errors(predicted[..., one], truth[..., one], mask)
                own, whole = (values.double().flatten(1).norm(dim=1) for values in (truth[..., one], truth))
                of_one["relative_l2"] = of_one["relative_l2"].masked_fill(own <= NOISE * whole, torch.nan)
                found |= {f"{label}/{key}": value for key, value in of_one.items()}
            prefix = field.points.removesuffix("_points")
            if (key := f"{prefix}_part") in batch:
                parts = batch[key] if mask is None else batch[key].masked_fill(~mask, -1)
                for number, part in enumerate(self.parts.get(prefix, ())):
                    own = truth.masked_fill((parts != number).unsqueeze(-1), 0)
                    sums = squared_sums(predicted, own, parts == number)
                    found |= {f"on {part}/{measure}": value for measure, value in sums.items()}
            measured[name] = found
        return named(measured)

    def lacks(self, scalar: str) -> list[str]:
        """Return the keys that a scalar needs and the samples lack."""
        return [key for key in self.scalars[scalar].needed_keys() if key not in self._keys]

    def size_key(self, name: str, keys: Iterable[str]) -> str | None:
        """Return the key of the areas or volumes of a field's points; None if the samples have neither."""
        field, have = self.fields[name], set(keys)
        prefix = field.points.removesuffix("_points")
        known = [field.measure] if field.measure else [f"{prefix}_area", f"{prefix}_cell_volume"]
        return next((key for key in known if key in have), None)

    def channels(self, name: str) -> int:
        """Return the number of components of an output in files: 1 for an angle, predicted as cosine and sine."""
        return 1 if name in self.periods else self.components.get(name, 1)

    def case_labels(self, name: str) -> list[str]:
        """Return the names of the components of an output of the case, as tables show them."""
        count, names = self.components[name], self.case_fields[name].component_names
        return [name] if count == 1 else [f"{name}_{component_name(channel, count, names)}" for channel in range(count)]

    def parts_of(self, name: str) -> dict[str, str]:
        """Return {key in metrics: label} for each component of a field and each named part of its set."""
        field, count = self.fields[name], self.channels(name)
        keys = [component_name(channel, count, field.component_names) for channel in range(count if count > 1 else 0)]
        keys = sorted(keys) if set(keys) == set("xyz") else keys  # The axes of files can be in another order.
        words = {key: f"component {key}" if key.isdecimal() else f"{key} component" for key in keys}
        return words | {f"on {part}": f"on {part}" for part in self.parts.get(field.points.removesuffix("_points"), ())}

    def describe_metrics(self) -> Iterable[Metric]:
        """Return the metrics of each field, in the field's unit, and of each scalar and output of the case."""
        for name, field in self.fields.items():
            yield from field_metrics(name, field.unit, self.parts_of(name))
        for name in self.scalars:
            yield from scalar_metrics(name, "")
        for name, field in self.case_fields.items():
            for label in self.case_labels(name):
                yield from scalar_metrics(label, field.unit)

    def summarise(self, samples: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the metrics of a split: mean loss, errors of fields, and measures of scalars (NaN if undefined)."""
        found = {name: float(np.mean(samples[name])) for name in ("loss",) if name in samples}
        for name in self.fields:
            for stem in (name, *(f"{name}/{part}" for part in self.parts_of(name))):
                found |= summarise_errors(samples, stem)
        for name, (measures, _) in measure_scalars(self, samples).items():
            found |= {f"{name}/{key}": nan if value is None else value for key, value in measures.items()}
        return found

    def ranking(self, samples: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the relative L2 of the first field or, if a derived task does not measure it, the loss: (S,)."""
        return samples.get(f"{next(iter(self.fields))}/relative_l2", super().ranking(samples))

    def results(self, samples: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return entries for result.json: names of fields, facts about scalars, and ranges of the training split."""
        spans = {name: {**span, "unit": self.parameters[name].unit} for name, span in self.seen.parameters.items()}
        return {
            "fields": list(self.fields),
            "scalars": scalar_facts(self, samples),
            "trained_on": {"points": self.seen.points, "parameters": spans},
        }


Sample = Mapping[str, Tensor]
Given = Mapping[str, Any] | None
Described = tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]


def describe(given: tuple[Given, Given, Given], about: Mapping[str, Any], sample: Sample) -> Described:
    """Return the fields, parameters and scalars of the configuration, completed by the data set's description.

    Keys that an entry of the configuration does not set come from the data set. An entry without `points` changes an
    output that the data set names; then all outputs of the data set are predicted.

    given: fields, parameters and scalars of the configuration; an item is None if it comes from the data set.
    about: the description of the data set: {"fields": {name: {points, unit, …}}, "outputs": {name: {unit}},
    "parameters": {name: {unit}}, "scalars": {name: settings}}.
    sample: one sample of the data set, from which error messages suggest fields.
    RequestError: neither the configuration nor the data set names a field, or a field has no points.
    """
    fields, parameters, scalars = given
    named = {**about.get("fields", {}), **{k: {**own, "points": CASE} for k, own in about.get("outputs", {}).items()}}
    defaults = FieldConfig().model_dump()  # A value that equals its default counts as not set.
    changes = {name: {key: value for key, value in own.items() if value != defaults.get(key)}
               for name, own in (fields or {}).items()}  # fmt: skip
    # If every entry of the configuration has points, no outputs or scalars come from the data set.
    alone = fields is not None and all(own.get("points") for own in fields.values())
    fields = {} if alone else dict(named)
    for name, own in changes.items():
        if "points" not in (entry := {**named.get(name, {}), **own}):
            near = nearest(name, named)
            meant = " ".join(f"task.fields.{near}.{key}={value}" for key, value in own.items())
            raise RequestError(
                "field-without-points",
                f"task.fields.{name} has no points, and the data set names no such output",
                seen=", ".join(named) or "a data set that names no outputs",
                expected="an output that the data set names, or an entry with points, such as surface_points",
                fix=meant if near and meant else f"task.fields.{name}.points=surface_points",
            )
        fields[name] = entry
    standard = {name: {**own, "scaling": own.get("scaling") or "standardised"} for name, own in fields.items()}
    if parameters is None:
        parameters = about.get("parameters", {})
    if not fields:
        raise RequestError(
            "fields-unknown",
            "neither the configuration nor the data set names the fields to predict",
            seen=f"task.fields=null, samples with {', '.join(sample)}",
            expected="an entry with points under task.fields for each output",
            fix=" ".join(f"task.fields.{name}.points={points}" for name, points in _candidates(sample)[:3])
            or "task.fields.NAME.points=surface_points",
        )
    return (
        {name: _known(own, FieldConfig) for name, own in standard.items()},
        {name: _known(own, ParameterConfig) for name, own in parameters.items()},
        scalars or ({} if alone else about.get("scalars", {})),
    )


def _known(own: Any, section: type[FieldConfig] | type[ParameterConfig]) -> dict[str, Any]:
    """Return the entries whose keys the section defines; the description of a data set can have further keys."""
    return {key: value for key, value in dict(own).items() if key in section.model_fields}


def _candidates(sample: Sample) -> list[tuple[str, str]]:
    """Return (key, points) of each array that has a row per point and whose key is not reserved, as normals are."""
    found = []
    for points in (key for key in sample if key.endswith("_points")):
        prefix = points.removesuffix("points")
        for key, value in sample.items():
            reserved = key.removeprefix(prefix) in ("points", *OF_A_POINT)
            if key.startswith(prefix) and not reserved and value.ndim and len(value) == len(sample[points]):
                found.append((key, points))
    return found


def check_keys(
    sample: Sample, outputs: Mapping[str, FieldConfig], inputs: Iterable[str], parameters: Iterable[str]
) -> None:
    """Raise RequestError if a sample lacks a key that the settings of the task name."""
    named: list[tuple[str, str, str]] = []
    for name, own in outputs.items():
        named.append((name, f"task.fields.{name}", f"~task.fields.{name}"))
        if own.points != CASE:
            sets, setting = [key for key in sample if key.endswith("_points")], f"task.fields.{name}.points"
            named.append((own.points, setting, f"{setting}={nearest(own.points, sets) or next(iter(sets), 'KEY')}"))
    named += [(key, "task.inputs", "task.inputs='[]'") for key in inputs]
    named += [(key, f"task.parameters.{key}", f"~task.parameters.{key}") for key in parameters]
    for key, setting, fix in named:
        if key not in sample:
            near = nearest(key, sample)
            raise RequestError("samples-lack-key", f"the samples have no array {key}, which {setting} names",
                               seen=", ".join(sample) or "no arrays",
                               expected=f"{key} in every sample" + (f"; they have {near}" if near else ""),
                               fix=f"{fix}      (or add {key} to the samples)")  # fmt: skip


def check_names(outputs: Iterable[str], scalars: Iterable[str]) -> None:
    """Raise RequestError if two fields, outputs of the case or coefficients have the same name."""
    names = [*outputs, *scalars]
    for name in (name for name in names if names.count(name) > 1):
        raise RequestError(
            "metrics-share-a-name",
            f"two predicted quantities are called {name}",
            seen=", ".join(names),
            expected="a different name for each field, each output of the case and each entry of task.scalars",
            fix=f"task.scalars.{name}_of_the_fields={{…}}      (in place of task.scalars.{name})"
            if name in scalars
            else f"give one of them another name than {name}, or other component_names",
        )


def check_columns(sample: Sample, fields: Mapping[str, FieldConfig], inputs: Iterable[str]) -> None:
    """Raise RequestError if an array does not have one row for each point of its set."""
    rows = {name: field.points for name, field in fields.items()} | set_rows(sample, inputs)
    for key, points in rows.items():
        count = len(sample[points])
        if sample[key].ndim == 0 or len(sample[key]) != count or sample[key].ndim > 2:
            raise RequestError(
                "rows-against-points",
                f"{key} does not have one row for each point in {points}",
                seen=f"{key} {tuple(sample[key].shape)}, {points} {tuple(sample[points].shape)}",
                expected=f"{key} ({count},) or ({count}, C); an output of the whole case has points: case",
                fix=f"give each sample as many rows of {key} as of {points}",
            )


def components_of(name: str, values: Tensor, field: FieldConfig) -> int:
    """Return the number of components of an output in samples. RequestError: the configuration has another number."""
    of_points = field.points != CASE
    found = (values.shape[1] if values.ndim > 1 else 1) if of_points else values.numel()
    if field.components is not None and field.components != found:
        raise RequestError("field-components", f"{name} does not have the number of components in task.fields",
                           seen=f"{name} {tuple(values.shape)}, task.fields.{name}.components={field.components}",
                           expected=f"{found}", fix=f"task.fields.{name}.components={found}")  # fmt: skip
    return int(found)

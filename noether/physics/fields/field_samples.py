"""Which fields and parameters a task has, and whether samples hold them: keys, components, rows."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.fields import FieldConfig
from noether.core.data.checks import OF_A_POINT, set_rows
from noether.core.data.layout import CASE
from noether.physics.settings import ParameterConfig

Sample = Mapping[str, Tensor]
Given = Mapping[str, Any] | None
Described = tuple[dict[str, FieldConfig], dict[str, ParameterConfig], Mapping[str, Any]]


def describe(given: tuple[Given, Given, Given], about: Mapping[str, Any], sample: Sample) -> Described:
    """Returns fields, parameters and scalars: those of the configuration, else those that the data set names.

    What an entry of the configuration leaves open is as the data set says. Where one has no `points`, it changes an
    output that the data set names, and all others of the data set are predicted too.

    Args:
        given: those of the configuration; None where it leaves them to the data set.
        about: what the data set says of itself: {"fields": {name: {points, unit, …}}, "outputs": {name: {unit}},
            "parameters": {name: {unit}}, "scalars": {name: settings}}.
        sample: one of its samples, for what to write where neither says anything.

    Raises:
        RequestError: neither the configuration nor the data set names a field, or one has no points.
    """
    fields, parameters, scalars = given
    named = {**about.get("fields", {}), **{k: {**own, "points": CASE} for k, own in about.get("outputs", {}).items()}}
    changes = {name: _changes(own) for name, own in (fields or {}).items()}
    # Whether the configuration says alone what is predicted, so that nothing comes from the data set.
    alone = fields is not None and all(own.get("points") for own in fields.values())
    fields = {} if alone else dict(named)
    for name, own in changes.items():
        if "points" not in (entry := {**named.get(name, {}), **own}):
            raise _without_points(name, own, named)
        fields[name] = entry
    standard = {name: {**own, "scaling": own.get("scaling") or "standardised"} for name, own in fields.items()}
    if parameters is None:
        parameters = about.get("parameters", {})
    if not fields:
        raise RequestError(
            "fields-unknown",
            "neither the configuration nor the data set says which fields are predicted",
            seen=f"task.fields=null, samples with {', '.join(sample)}",
            expected="each output under task.fields, with the points at which it is given",
            fix=" ".join(f"task.fields.{name}.points={points}" for name, points in _candidates(sample)[:3])
            or "task.fields.NAME.points=surface_points",
        )
    return (
        {name: FieldConfig.model_validate(_known(own, FieldConfig)) for name, own in standard.items()},
        {name: ParameterConfig.model_validate(_known(own, ParameterConfig)) for name, own in parameters.items()},
        scalars or ({} if alone else about.get("scalars", {})),
    )


def _changes(own: Mapping[str, Any]) -> dict[str, Any]:
    """What an entry of the configuration says: a default leaves it to the data set."""
    defaults = FieldConfig().model_dump()
    return {key: value for key, value in own.items() if value != defaults.get(key)}


def _without_points(name: str, own: Mapping[str, Any], named: Iterable[str]) -> RequestError:
    near = nearest(name, named)
    meant = " ".join(f"task.fields.{near}.{key}={value}" for key, value in own.items())
    return RequestError(
        "field-without-points",
        f"task.fields.{name} has no points, and the data set names no such output",
        seen=", ".join(named) or "a data set that names no outputs",
        expected="an output that the data set names; or the points at which it is given",
        fix=meant if near and meant else f"task.fields.{name}.points=surface_points",
    )


def _known(own: Any, section: type[FieldConfig] | type[ParameterConfig]) -> dict[str, Any]:
    """What a section has of what is said: a data set may say more of a field."""
    return {key: value for key, value in dict(own).items() if key in section.model_fields}


def _candidates(sample: Sample) -> list[tuple[str, str]]:
    """Keys that could be fields: with a row for each point of a set, and not what is known of a shape."""
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
    """Refuses a sample without a key that the task names. RequestError."""
    for name, own in outputs.items():
        if name not in sample:
            raise _absent(sample, name, f"task.fields.{name}", f"~task.fields.{name}")
        if own.points != CASE and own.points not in sample:
            sets = [key for key in sample if key.endswith("_points")]
            near = nearest(own.points, sets) or next(iter(sets), "KEY")
            setting = f"task.fields.{name}.points"
            raise _absent(sample, own.points, setting, f"{setting}={near}")
    for key in inputs:
        if key not in sample:
            raise _absent(sample, key, "task.inputs", "task.inputs='[]'")
    for key in parameters:
        if key not in sample:
            raise _absent(sample, key, f"task.parameters.{key}", f"~task.parameters.{key}")


def _absent(sample: Sample, key: str, setting: str, fix: str) -> RequestError:
    near = nearest(key, sample)
    return RequestError(
        "samples-lack-key",
        f"the samples have no {key}, which {setting} names",
        seen=", ".join(sample) or "no arrays",
        expected=f"{key} in every sample" + (f"; they have {near}" if near else ""),
        fix=f"{fix}      (or give the samples {key})",
    )


def check_names(outputs: Iterable[str], scalars: Iterable[str]) -> None:
    """Refuses two things whose metrics would have one name: fields, outputs of the case, coefficients. RequestError."""
    names = [*outputs, *scalars]
    for name in (name for name in names if names.count(name) > 1):
        raise RequestError(
            "metrics-share-a-name",
            f"two of what is predicted are called {name}",
            seen=", ".join(names),
            expected="a name for each field, each output of the case and each of task.scalars",
            fix=f"task.scalars.{name}_of_the_fields={{…}}      (in place of task.scalars.{name})"
            if name in scalars
            else f"another name than {name}, or other component_names",
        )


def check_columns(sample: Sample, fields: Mapping[str, FieldConfig], inputs: Iterable[str]) -> None:
    """Refuses arrays with another number of rows than their points. RequestError."""
    rows = {name: field.points for name, field in fields.items()} | set_rows(sample, inputs)
    for key, points in rows.items():
        count = len(sample[points])
        if sample[key].ndim == 0 or len(sample[key]) != count or sample[key].ndim > 2:
            raise RequestError(
                "rows-against-points",
                f"{key} does not have one row for each of {points}",
                seen=f"{key} {tuple(sample[key].shape)}, {points} {tuple(sample[points].shape)}",
                expected=f"{key} ({count},) or ({count}, C); an output of the whole case has points: case",
                fix=f"give the samples as many {key} as {points}",
            )


def components_of(name: str, values: Tensor, field: FieldConfig) -> int:
    """Returns the components of an output, as its samples have them. RequestError: the configuration says otherwise."""
    of_points = field.points != CASE
    found = (values.shape[1] if values.ndim > 1 else 1) if of_points else values.numel()
    if field.components is not None and field.components != found:
        raise RequestError(
            "field-components",
            f"{name} has another number of components than task.fields says",
            seen=f"{name} {tuple(values.shape)}, task.fields.{name}.components={field.components}",
            expected=f"{found}",
            fix=f"task.fields.{name}.components={found}",
        )
    return int(found)

"""Do samples hold what a task of fields needs: keys, components, rows, finite numbers? Refused before training."""

from collections.abc import Collection, Iterable, Mapping

from torch import Tensor

from noether.common.suggest import nearest
from noether.config.task import FieldConfig
from noether.data.layout import CASE
from noether.errors import RequestError

Sample = Mapping[str, Tensor]


def check_keys(
    sample: Sample, outputs: Mapping[str, FieldConfig], inputs: Iterable[str], parameters: Iterable[str]
) -> None:
    """Refuses a sample without a key that the task names. RequestError."""
    wanted = {f"task.fields.{name}": name for name in outputs}
    wanted |= {f"task.fields.{name}.points": own.points for name, own in outputs.items() if own.points != CASE}
    wanted |= {f"task.inputs ({key})": key for key in inputs}
    wanted |= {f"task.parameters.{key}": key for key in parameters}
    for setting, key in wanted.items():
        if key in sample:
            continue
        points = setting.endswith(".points")
        known = [name for name in sample if name.endswith("_points") == points]
        near = nearest(key, known) or (known[0] if points and known else None)
        raise RequestError(
            f"the samples have no {key}, which {setting} names",
            seen=", ".join(sample) or "no arrays",
            expected=f"{key} in every sample",
            fix=f"{setting}={near}" if points and near else f"a key that the samples have, such as {near}" if near
            else f"give the samples {key}, or take it out of {setting}",
        )  # fmt: skip


def check_columns(sample: Sample, fields: Mapping[str, FieldConfig], inputs: Iterable[str]) -> None:
    """Refuses fields and inputs with another number of rows than their points. RequestError."""
    sets = {field.points for field in fields.values()}
    keys = {name: field.points for name, field in fields.items()}
    keys |= {key: points for key in inputs for points in sets if key.startswith(points.removesuffix("points"))}
    for key, points in keys.items():
        rows = len(sample[key]) if sample[key].ndim else None
        if rows != len(sample[points]) or sample[key].ndim > 2:
            raise RequestError(
                f"{key} does not have a row for each of {points}",
                seen=f"{key} {tuple(sample[key].shape)}, {points} {tuple(sample[points].shape)}",
                expected=f"({len(sample[points])},) or ({len(sample[points])}, components); one number for a whole "
                "case has task.fields.NAME.points: case",
                fix=f"fix the samples, or task.fields.{key}.points",
            )


def check_sample(
    sample: Sample, outputs: Mapping[str, FieldConfig], inputs: Collection[str], parameters: Collection[str]
) -> None:
    """Refuses a sample that lacks something, or holds numbers that are not finite. RequestError."""
    check_keys(sample, outputs, inputs, parameters)
    check_columns(sample, {name: own for name, own in outputs.items() if own.points != CASE}, inputs)
    points = {key for key in sample if key.endswith("_points")}
    for key in (*outputs, *inputs, *parameters, *points):
        bad = int((~sample[key].isfinite()).sum())
        if bad:
            raise RequestError(
                f"{key} holds numbers that are not finite",
                seen=f"{bad} of {sample[key].numel()} are NaN or infinite",
                expected="finite numbers in every sample",
                fix="fix the sample, or leave it out of the data set",
            )


def components_of(name: str, values: Tensor, field: FieldConfig) -> int:
    """Returns the components of an output, as its samples have them. RequestError: the configuration says otherwise."""
    of_points = field.points != CASE
    found = (values.shape[1] if values.ndim > 1 else 1) if of_points else values.numel()
    if field.components is not None and field.components != found:
        raise RequestError(
            f"{name} has another number of components than task.fields says",
            seen=f"{name} {tuple(values.shape)}, task.fields.{name}.components={field.components}",
            expected=f"{found}",
            fix=f"task.fields.{name}.components={found}",
        )
    return int(found)

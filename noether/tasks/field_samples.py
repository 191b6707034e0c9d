"""Checks that samples hold what a task of fields needs: keys, components, rows."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from noether.common.suggest import nearest
from noether.config.task import FieldConfig
from noether.data.checks import set_rows
from noether.data.layout import CASE
from noether.errors import RequestError

Sample = Mapping[str, Tensor]


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
        f"the samples have no {key}, which {setting} names",
        seen=", ".join(sample) or "no arrays",
        expected=f"{key} in every sample" + (f"; they have {near}" if near else ""),
        fix=f"{fix}      (or give the samples {key})",
    )


def check_columns(sample: Sample, fields: Mapping[str, FieldConfig], inputs: Iterable[str]) -> None:
    """Refuses arrays with another number of rows than their points. RequestError."""
    rows = {name: field.points for name, field in fields.items()} | set_rows(sample, inputs)
    for key, points in rows.items():
        count = len(sample[points])
        if sample[key].ndim == 0 or len(sample[key]) != count or sample[key].ndim > 2:
            raise RequestError(
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
            f"{name} has another number of components than task.fields says",
            seen=f"{name} {tuple(values.shape)}, task.fields.{name}.components={field.components}",
            expected=f"{found}",
            fix=f"task.fields.{name}.components={found}",
        )
    return int(found)

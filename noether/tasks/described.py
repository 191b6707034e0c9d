"""Which fields and parameters a task has: those of its configuration, else those that the data set names."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from noether.data.checks import OF_A_POINT
from noether.data.layout import CASE
from noether.errors import RequestError

Described = tuple[Mapping[str, Any], Mapping[str, Any]]


def describe(
    given: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None],
    about: Mapping[str, Any],
    sample: Mapping[str, Tensor],
) -> Described:
    """Returns fields and parameters, each {name: settings}.

    Args:
        given: those of the configuration; None where it leaves them to the data set.
        about: what the data set says of itself: {"fields": {name: {points, unit, …}}, "outputs": {name: {unit}},
            "parameters": {name: {unit}}}.
        sample: one of its samples, for what to write where neither says anything.

    Raises:
        RequestError: neither the configuration nor the data set names a field.
    """
    fields, parameters = given
    if fields is None:
        fields = dict(about.get("fields", {}))
        fields |= {name: {**own, "points": CASE} for name, own in about.get("outputs", {}).items()}
    if parameters is None:
        parameters = about.get("parameters", {})
    if not fields:
        raise RequestError(
            "neither the configuration nor the data set says which fields are predicted",
            seen=f"task.fields=null, samples with {', '.join(sample)}",
            expected="each output under task.fields, with the points at which it is given",
            fix=" ".join(f"task.fields.{name}.points={points}" for name, points in _candidates(sample)[:3])
            or "task.fields.NAME.points=surface_points",
        )
    known = ("unit", "weight", "points", "components", "scaling", "measure")
    return (
        {name: {key: value for key, value in dict(own).items() if key in known} for name, own in fields.items()},
        {name: {"unit": dict(own).get("unit", "")} for name, own in parameters.items()},
    )


def _candidates(sample: Mapping[str, Tensor]) -> list[tuple[str, str]]:
    """Keys that could be fields: with a row for each point of a set, and not what is known of a shape."""
    found = []
    for points in (key for key in sample if key.endswith("_points")):
        prefix = points.removesuffix("points")
        for key, value in sample.items():
            own = key.removeprefix(prefix)
            reserved = own in ("points", *OF_A_POINT)
            if key.startswith(prefix) and not reserved and value.ndim and len(value) == len(sample[points]):
                found.append((key, points))
    return found

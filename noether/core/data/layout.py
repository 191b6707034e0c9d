"""What a data set says about itself, and what a model predicts and reads: fields, features, parameters, outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CASE = "case"
"""Stands in `task.fields.NAME.points` for an output that belongs to a whole case."""


@dataclass(frozen=True)
class Layout:
    """The names and widths from which a model builds its heads and embeddings. The task makes it.

    outputs: {set of points: {field: components}}; the sets are keys of samples (`surface_points`, `volume_points`, …).
    features: {set of points: {key: components}} further inputs of every point.
    parameters: {key: components} further inputs of a case.
    case_outputs: {name: components} outputs of a case.
    """

    outputs: Mapping[str, Mapping[str, int]]
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    parameters: Mapping[str, int] = field(default_factory=dict)
    case_outputs: Mapping[str, int] = field(default_factory=dict)

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets of points at which something is predicted."""
        return tuple(self.outputs)

    def width(self, points: str) -> int:
        """The components of all fields of a set together."""
        return sum(self.outputs[points].values())


CAR_FLOW = Layout({"surface_points": {"surface_pressure": 1}, "volume_points": {"volume_velocity": 3}})
"""The published models' own: pressure on the surface, velocity in the volume."""


def in_order(sets: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Return the sets in the order that shared heads have their channels in: surface, volume, then as named."""
    first = [name for name in CAR_FLOW.outputs if name in sets]
    return {name: sets[name] for name in (*first, *(name for name in sets if name not in first))}


CAR_SPACE = {"wind": [0.0, 0.0, 1.0], "up": [0.0, 1.0, 0.0], "ground": True}
"""Cars: x across, y up, z along the wind, a ground under the wheels."""
FRONTAL, FRONTAL_WITHOUT_YAW = "frontal area", "frontal area without yaw"
"""Reference areas of a mesh: its shadow along the wind, or along its own length."""


def about_data(dataset: Any) -> Mapping[str, Any]:
    """Return a data set's `about` (a mapping, or a method that returns one); empty where it has none.

    Known entries, each optional:
        fields: {name: {points, unit, …}} what can be predicted at points, with any key of `task.fields`.
        outputs: {name: {unit}} what can be predicted of a whole case.
        parameters: {name: {unit}} what is given of a whole case.
        scalars: {name: settings} force coefficients that the fields and cases have what is needed for.
        parts: {set: [names]} of the numbers in SET_part.
        space: {"wind": (3,), "up": (3,), "ground": whether there is one under the body}; directions in the axes of the
            samples. What is absent is not drawn and not said. "files": {"rotation": (3, 3) from the axes of the files
            to those of the samples, "metres": of one unit of length, "words"}: how shapes given later are read.
        reference_areas: {name: FRONTAL or FRONTAL_WITHOUT_YAW} those of a case that follow from its shape.
    """
    about = getattr(dataset, "about", None)
    found = about() if callable(about) else about
    return found if isinstance(found, Mapping) else {}


def sample_name(dataset: Any, index: int) -> str:
    """Return what a data set calls a sample; its number where it has no names."""
    name = getattr(dataset, "name", None)
    return str(name(index)) if callable(name) else str(index)

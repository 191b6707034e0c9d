"""A data set's description of itself, and the layout of a model's inputs and outputs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

CASE = "case"
"""The value of `task.fields.NAME.points` for an output that belongs to a whole case."""


@dataclass(frozen=True)
class Layout:
    """The names and widths from which a model builds its heads and embeddings. The task creates the layout.

    outputs: {set of points: {field: components}}; the sets are keys of samples (`surface_points`, `volume_points`, …).
    features: {set of points: {key: components}}, further inputs at every point.
    parameters: {key: components}, further inputs of a case.
    case_outputs: {name: components}, outputs of a case.
    """

    outputs: Mapping[str, Mapping[str, int]]
    features: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    parameters: Mapping[str, int] = field(default_factory=dict)
    case_outputs: Mapping[str, int] = field(default_factory=dict)

    @property
    def sets(self) -> tuple[str, ...]:
        """The sets of points with predicted fields."""
        return tuple(self.outputs)

    def width(self, points: str) -> int:
        """Return the total number of components of a set's fields."""
        return sum(self.outputs[points].values())


CAR_FLOW = Layout({"surface_points": {"surface_pressure": 1}, "volume_points": {"volume_velocity": 3}})
"""The layout of the published models: pressure on the surface, velocity in the volume."""


def in_order(sets: Mapping[str, Mapping[str, int]]) -> dict[str, Mapping[str, int]]:
    """Return the sets in the order in which shared heads output them: surface, volume, then the others as given."""
    first = [name for name in CAR_FLOW.outputs if name in sets]
    return {name: sets[name] for name in (*first, *(name for name in sets if name not in first))}


CAR_SPACE = {"wind": [0.0, 0.0, 1.0], "up": [0.0, 1.0, 0.0], "ground": True}
"""The space of the cars: x points across, y up, z along the wind, and there is a ground under the wheels."""
FRONTAL, FRONTAL_WITHOUT_YAW = "frontal area", "frontal area without yaw"
"""Reference areas of a mesh: its area projected along the wind, or along the mesh's own length."""


def about_data(dataset: Any) -> Mapping[str, Any]:
    """Return a data set's `about` (a mapping, or a method that returns one); empty if it has none.

    Known entries, each optional:
        fields: {name: {points, unit, …}}, quantities to predict at points, with any key of `task.fields`.
        outputs: {name: {unit}}, quantities to predict for a whole case.
        parameters: {name: {unit}}, inputs that belong to a whole case.
        scalars: {name: settings}, force coefficients that can be computed from the fields and cases.
        parts: {set: [names]}, the names of the part indices in SET_part.
        space: {"wind": (3,), "up": (3,), "ground": True if there is a ground under the body}; directions in the axes of
            the samples. Absent entries are neither drawn nor mentioned. "files" describes files of further shapes:
            {"rotation": (3, 3) from axes of files to axes of samples, "metres": per unit of length, "words": the axes}.
        reference_areas: {name: FRONTAL or FRONTAL_WITHOUT_YAW}, areas that can be computed from a case's shape.
    """
    about = getattr(dataset, "about", None)
    found = about() if callable(about) else about
    return found if isinstance(found, Mapping) else {}


def sample_name(dataset: Any, index: int) -> str:
    """Return a data set's name for a sample; its index if it has no names."""
    name = getattr(dataset, "name", None)
    return str(name(index)) if callable(name) else str(index)

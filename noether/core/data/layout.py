"""What a model predicts and reads: the fields of each set of points, features, parameters and outputs of a case."""

from collections.abc import Mapping
from dataclasses import dataclass, field

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
    """Returns the sets in the order that shared heads have their channels in: surface, volume, then as named."""
    first = [name for name in CAR_FLOW.outputs if name in sets]
    return {name: sets[name] for name in (*first, *(name for name in sets if name not in first))}

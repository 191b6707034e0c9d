"""A parametric bluff body like Ahmed's: its parameters with their ranges, and its surface as STL."""

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import qmc

RANGES: dict[str, tuple[float, float]] = {
    "length": (0.9, 1.2),
    "height": (0.25, 0.34),
    "width": (0.34, 0.44),
    "front_radius": (0.06, 0.11),
    "slant_angle": (0.0, 35.0),
    "slant_length": (0.12, 0.25),
    "ground_clearance": (0.04, 0.07),
    "wind_speed": (20.0, 40.0),
}
"""The lowest and highest value of each parameter, in m; the slant angle is in degrees, the wind speed in m/s."""
ARC_STEPS = 8  # straight segments per quarter circle of the rounded front


@dataclass(frozen=True)
class Body:
    """The parameters of one case, in the units of RANGES."""

    length: float
    height: float
    width: float
    front_radius: float
    slant_angle: float
    slant_length: float
    ground_clearance: float
    wind_speed: float

    @property
    def frontal_area(self) -> float:
        """The frontal area (m²) of half the body, because only one half is solved."""
        return self.width * self.height / 2


def draw_bodies(count: int, seed: int = 0) -> list[Body]:
    """Draw bodies evenly over RANGES by a scrambled Sobol sequence; more bodies begin with the same ones."""
    low, high = (np.array([bounds[side] for bounds in RANGES.values()]) for side in (0, 1))
    unit = qmc.Sobol(len(RANGES), seed=seed).random_base2(math.ceil(math.log2(max(count, 2))))[:count]
    return [Body(*(round(float(value), 6) for value in row)) for row in low + unit * (high - low)]


def profile(body: Body) -> NDArray[np.float64]:
    """Return the corners (N, 2) of the convex side view in m, clockwise seen from -y; x is along the wind, z up."""
    radius, bottom, top = body.front_radius, body.ground_clearance, body.ground_clearance + body.height
    turn = np.linspace(0, np.pi / 2, ARC_STEPS + 1)
    slant = math.radians(body.slant_angle)
    under = np.c_[radius - radius * np.sin(turn), bottom + radius - radius * np.cos(turn)]
    over = np.c_[radius - radius * np.cos(turn), top - radius + radius * np.sin(turn)]
    back = [
        (body.length - body.slant_length * math.cos(slant), top),
        (body.length, top - body.slant_length * math.sin(slant)),
        (body.length, bottom),
    ]
    return np.concatenate([under, over, back])


def write_stl(body: Body, path: Path) -> None:
    """Write the closed surface of the body as ASCII STL, with triangles that face outwards."""
    outline = profile(body)
    count = len(outline)
    left, right = (np.insert(outline, 1, side * body.width / 2, axis=1) for side in (-1, 1))
    triangles = []
    for here in range(count):
        there = (here + 1) % count
        triangles += [(left[here], left[there], right[there]), (left[here], right[there], right[here])]
    for corner in range(1, count - 1):
        triangles += [(left[0], left[corner + 1], left[corner]), (right[0], right[corner], right[corner + 1])]
    lines = ["solid body"]
    for triangle in triangles:
        corners = (f"  vertex {x:.9g} {y:.9g} {z:.9g}" for x, y, z in triangle)
        lines += ["facet normal 0 0 0", " outer loop", *corners, " endloop", "endfacet"]
    path.write_text("\n".join([*lines, "endsolid body"]) + "\n")

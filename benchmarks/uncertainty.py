"""How right the gradients of a run on the built-in cars are: held against the potential flow, which knows them exactly.

    python benchmarks/uncertainty.py RUN [RUN …] [--rounds CARS]

A row is the cosine between the gradient of a model's lift with respect to a test car's three semi-axes and the exact
one, on a fixed reference area: median and range over the cars (30). One row for each run.
"""

from pathlib import Path

import numpy as np
from record import finish, parser, row

import noether
from noether.data.ellipsoid_car import EllipsoidCar, draw_car
from noether.evaluation.sensitivity import sensitivity
from noether.evaluation.shape_input import Shape

STEP = 1e-5  # m, of the exact lift's central differences


def half_sphere(polar: int = 40, azimuth: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Returns directions (N, 3) of the half y ≥ 0, and triangles."""
    theta, phi = np.meshgrid(np.linspace(0.01, np.pi - 0.01, polar), np.linspace(0, np.pi, azimuth), indexing="ij")
    points = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)
    index = np.arange(polar * azimuth).reshape(polar, azimuth)
    a, b, c, d = (part.ravel() for part in (index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]))
    return points.reshape(-1, 3), np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])


def exact_gradient(car: EllipsoidCar) -> np.ndarray:
    """Returns the gradient (3,) of lift, on the car's own reference area, by half width, height and half length."""
    gradient = np.empty(3)
    for axis in range(3):
        lifts = []
        for sign in (1, -1):
            width, height, length = car.semi_axes + sign * STEP * np.eye(3)[axis]
            moved = EllipsoidCar(float(length), float(height), float(width), car.yaw)
            lifts.append(moved.lift_coefficient * moved.reference_area / car.reference_area)
        gradient[axis] = (lifts[0] - lifts[1]) / (2 * STEP)
    return gradient


def cosine_of_lift(run: "noether.LoadedRun", car: EllipsoidCar) -> float:
    """Returns the cosine between a model's gradient by the semi-axes and the exact one."""
    directions, faces = half_sphere()
    shape = Shape.of_mesh(car.to_world(directions * car.semi_axes), faces)
    found = sensitivity(run.trained, shape, "lift_coefficient", {}, 16384)
    # A point of the surface is A s: by the semi-axis k it moves by s_k along the body's axis k.
    own = np.array([np.sum(found.points * car.to_world(directions * np.eye(3)[axis])) for axis in range(3)])
    exact = exact_gradient(car)
    return float(own @ exact / np.linalg.norm(own) / np.linalg.norm(exact))


def main() -> None:
    own = parser(__doc__)
    own.add_argument("runs", nargs="+", type=Path)
    options = own.parse_args()
    rows = []
    for folder in options.runs:
        run = noether.load_run(folder)
        cars = [draw_car(run.config.dataset.seed, "test", index) for index in range(options.rounds or 30)]
        found = [cosine_of_lift(run, car) for car in cars]
        rows.append(row(f"{folder.name}: cosine with the exact gradient of lift", found, 0.95))
    finish("uncertainty", rows, options.json)


if __name__ == "__main__":
    main()

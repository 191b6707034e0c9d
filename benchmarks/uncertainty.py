"""Check a run on the built-in cars: its gradient of lift, its detection of unfamiliar shapes, or its intervals.

    python benchmarks/uncertainty.py RUN [RUN …] [--rounds CARS] [--pool CARS]

Compares the model's gradient of a test car's lift, with respect to its three semi-axes, with the exact gradient from
potential flow, both on a fixed reference area. Prints the median and range of their cosine over 30 or `--rounds` cars.
Also tests how well the distance from the training shapes separates these test cars from as many unusual cars, and
prints the AUROC and the share of cars for which `predict` warns. The half length, height, half width or yaw of an
unusual car is outside its training range, by 10 to 50 % or by 25 to 100 % of the range's width.
`--pool` instead measures the prediction intervals of all runs together, on a pool of further unseen cars. In each of
300 draws, 60 of these cars calibrate the intervals, and 100 others test their coverage.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from record import finish, parser, row, told

from noether.core.data.build import prepare_data
from noether.physics.cars.ellipsoid import (
    HALF_LENGTH_RANGE,
    HALF_WIDTH_RANGE,
    HEIGHT_RANGE,
    YAW_RANGE,
    EllipsoidCar,
    draw_car,
    open_folder,
)
from noether.physics.predict.python_api import LoadedRun
from noether.physics.predict.sensitivity import sensitivity
from noether.physics.predict.shape_input import Shape
from noether.physics.settings import EllipsoidDatasetConfig
from noether.physics.uncertainty.ensemble import LEVELS, conformal_quantiles, covered_shares, scores_of, shape_distance

RANGES = {"half_length": HALF_LENGTH_RANGE, "height": HEIGHT_RANGE, "half_width": HALF_WIDTH_RANGE, "yaw": YAW_RANGE}
STEP = 1e-5  # step in m of the central differences that give the exact gradient
POOL_SEED = 1000


def half_sphere(polar: int = 40, azimuth: int = 48) -> tuple[np.ndarray, np.ndarray]:
    """Return points (N, 3) on the half y ≥ 0 of the unit sphere, and triangles of their indices."""
    theta, phi = np.meshgrid(np.linspace(0.01, np.pi - 0.01, polar), np.linspace(0, np.pi, azimuth), indexing="ij")
    points = np.stack([np.sin(theta) * np.cos(phi), np.sin(theta) * np.sin(phi), np.cos(theta)], axis=-1)
    index = np.arange(polar * azimuth).reshape(polar, azimuth)
    a, b, c, d = (part.ravel() for part in (index[:-1, :-1], index[1:, :-1], index[1:, 1:], index[:-1, 1:]))
    return points.reshape(-1, 3), np.concatenate([np.stack([a, b, c], 1), np.stack([a, c, d], 1)])


def exact_gradient(car: EllipsoidCar) -> np.ndarray:
    """Return the gradient (3,) of lift with respect to half width, height and half length, at fixed reference area."""
    gradient = np.empty(3)
    for axis in range(3):
        lifts = []
        for sign in (1, -1):
            width, height, length = car.semi_axes + sign * STEP * np.eye(3)[axis]
            moved = EllipsoidCar(float(length), float(height), float(width), car.yaw)
            lifts.append(moved.lift_coefficient * moved.reference_area / car.reference_area)
        gradient[axis] = (lifts[0] - lifts[1]) / (2 * STEP)
    return gradient


def cars_of(run: LoadedRun) -> EllipsoidDatasetConfig:
    """Return the dataset settings of a run on the built-in cars; raise SystemExit for other runs."""
    if not isinstance(run.config.dataset, EllipsoidDatasetConfig):
        raise SystemExit(f"the exact flow is known for dataset=ellipsoid, not for {run.config.dataset.kind}")
    return run.config.dataset


def cosine_of_lift(run: LoadedRun, car: EllipsoidCar) -> float:
    """Return the cosine between the model's and the exact gradient of lift with respect to the semi-axes."""
    directions, faces = half_sphere()
    shape = Shape.of_mesh(car.to_world(directions * car.semi_axes), faces)
    found = sensitivity(run.trained, shape, "lift_coefficient", {}, 16384)
    # A surface point is A s, so its derivative with respect to semi-axis k is s_k along the body's axis k.
    own = np.array([np.sum(found.points * car.to_world(directions * np.eye(3)[axis])) for axis in range(3)])
    exact = exact_gradient(car)
    return float(own @ exact / np.linalg.norm(own) / np.linalg.norm(exact))


def outside(car: EllipsoidCar, index: int, by: tuple[float, float]) -> EllipsoidCar:
    """Return the car with one of four quantities (`index` modulo 4) outside its range; `by`: shares of its width."""
    name, (low, high) = list(RANGES.items())[index % len(RANGES)]
    rng = np.random.default_rng([index, round(100 * by[1])])
    # Lengths only go above their range, because a length that far below could be negative.
    beyond = rng.uniform(*by) * (high - low) * (1 if name != "yaw" or rng.random() < 0.5 else -1)
    return replace(car, **{name: high + beyond if beyond > 0 else low + beyond})


def distance_of(run: LoadedRun, car: EllipsoidCar) -> float:
    """Return the distance of a car from the shapes on which a run was trained."""
    directions, faces = half_sphere()
    shape = Shape.of_mesh(car.to_world(directions * car.semi_axes), faces)
    found = shape_distance(run.calibrated, shape, {}, {})
    if found is None:
        raise SystemExit("this model has no latent")
    return found


def auroc(inside: list[float], beyond: list[float]) -> float:
    """Return the probability that a shape outside the ranges has a larger distance than a shape inside."""
    return float(np.mean(np.array(beyond)[:, None] > np.array(inside)[None, :]))


def share_beyond(found: list[float], farthest: float) -> float:
    """Return the share of the distances `found` that exceed `farthest`, the largest distance of a validation shape."""
    return float(np.mean(np.array(found) > farthest))


def covered_in_deals(run: LoadedRun, cars: int) -> list[dict[str, Any]]:
    """Return rows with the mean and deviation over 300 draws of the percentage of cars that 90 % intervals cover."""
    pool = cars_of(run).model_copy(update={"train_shapes": 2, "test_shapes": cars, "seed": POOL_SEED})
    folder = prepare_data(run.config.model_copy(update={"dataset": pool, "dataset_root": None}))
    assert folder is not None
    _, unseen = open_folder(folder)
    ensemble = run.calibrated
    floor = {label: np.array(own["floor"]) for label, own in ensemble.record["outputs"].items()}
    found = scores_of(ensemble.members, unseen, range(cars), floor)
    rng = np.random.default_rng(0)
    deals = [np.split(rng.permutation(cars)[:160], [60]) for _ in range(300)]
    rows = []
    for label, cases in found.items():
        shares = []
        for calibrating, others in deals:
            of_columns = [
                covered_shares([cases[i][k] for i in others], conformal_quantiles([cases[i][k] for i in calibrating]))
                for k in range(len(cases[0]))
            ]
            shares.append(100 * float(np.mean(of_columns, axis=0)[LEVELS.tolist().index(90)]))
        mean, deviation = float(np.mean(shares)), float(np.std(shares))
        rows.append(row(f"{label}: percent of 100 cars within intervals of 90, mean of the deals", [mean]))
        rows.append(row(f"{label}: percent within intervals of 90, by deal (standard deviation)", [deviation]))
    return rows


def main() -> None:
    own = parser(__doc__)
    own.add_argument("runs", nargs="+", type=Path)
    own.add_argument("--pool", type=int, default=0, help="size of the pool of further cars (default: no pool)")
    options = own.parse_args()
    if options.pool:
        finish("uncertainty", covered_in_deals(LoadedRun(*options.runs), options.pool), options.json)
        return
    rows = []
    for folder in options.runs:
        run = LoadedRun(folder)
        cars = [draw_car(cars_of(run).seed, "test", index) for index in range(options.rounds or 30)]
        found = [cosine_of_lift(run, car) for car in cars]
        rows.append(row(f"{folder.name}: cosine with the exact gradient of lift", found, 0.95))
        inside = [distance_of(run, car) for car in cars]
        farthest = max(run.calibrated.record["distance"]["validation"])
        rows.append(row(f"{folder.name}: share of the test cars warned of", [share_beyond(inside, farthest)]))
        for by in ((0.1, 0.5), (0.25, 1.0)):
            beyond = [distance_of(run, outside(car, index, by)) for index, car in enumerate(cars)]
            share = f"{by[0]:.0%} to {by[1]:.0%} of a range"
            rows.append(row(f"{folder.name}: AUROC of shapes outside by {share}", [auroc(inside, beyond)], 0.95))
            rows.append(row(f"{folder.name}: share of these warned of", [share_beyond(beyond, farthest)]))
    finish("uncertainty", rows, options.json)


if __name__ == "__main__":
    told(main)

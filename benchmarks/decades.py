"""Measure what `scaling: symmetric_log` changes for a field that spans decades.

    python benchmarks/decades.py FOLDER [--cases N] [--updates N] [--seeds N] [--json FILE]

Writes cases to FOLDER: the heat flux around a point source, q = Q r / (4π (r² + e²)^1.5) with e = 1.5 mm, at 4,096
points in a box of 0.1 m; each case has a random source position and a random Q. The map that `noether data inspect`
drafts for these cases selects symmetric_log. Two default models train for the same number of updates, one with this
scaling and one with standardised values. Prints two errors over the test split: relative L2, which the points near the
source dominate, and the median over the points of |error| / |truth|.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import pyvista
import torch
from models import Contender, this_device
from record import at_least_one, finish, parser, row, told

from noether.config.compose import load_config
from noether.physics.cases.draft import draft_map
from noether.physics.cases.prepare import prepare_cases
from noether.physics.cases.survey import survey_folder

FIELD = "volume_heat_flux"
SCALINGS = ("standardised", "symmetric_log")
SIDE, BLUR = 0.1, 0.0015  # the box's side and e, in m


def write_cases(folder: Path, count: int) -> None:
    """Write each case as a mesh of 16 × 16 × 16 points, moved randomly, and a JSON file with its parameters."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    for number in range(count):
        mesh = pyvista.ImageData(dimensions=(16,) * 3, spacing=(SIDE / 15,) * 3).cast_to_unstructured_grid()
        mesh.points = np.asarray(mesh.points) + rng.normal(size=(mesh.n_points, 3)) * 0.0012
        x, y, power = rng.uniform(0.03, 0.07), rng.uniform(0.03, 0.07), rng.uniform(5, 50)
        away = np.asarray(mesh.points) - (x, y, SIDE / 2)
        mesh["heat_flux"] = power / (4 * np.pi) * away / ((away**2).sum(axis=1) + BLUR**2)[:, None] ** 1.5
        mesh.save(folder / f"source_{number:03d}.vtu")
        (folder / f"source_{number:03d}.json").write_text(
            json.dumps({"x_mm": x * 1e3, "y_mm": y * 1e3, "Q [W]": power})
        )


def errors(scaling: str, prepared: Path, options: argparse.Namespace, seed: int) -> tuple[float, float]:
    """Train a model; return its relative L2 and its median relative error of a point, as means over the test cases."""
    words = ["dataset=cases", f"dataset_root={prepared}", f"seed={seed}", "accelerator=cpu"]
    words += [f"trainer.max_updates={options.updates}"] + (
        [f"task.fields.{FIELD}.scaling={scaling}"] if scaling == "standardised" else []
    )
    one = Contender(load_config(words), this_device())
    one.train(options.updates)
    one.evaluate()
    problem, model = one.run.problem, next(iter(one.run.state.evaluation_models().values()))
    of_points = []
    for index in range(len(problem.splits.test)):
        batch = {key: value[None] for key, value in problem.splits.test[index].items()}
        with torch.inference_mode():
            found = problem.task.to_physical(model(problem.task.prepare(batch)))[FIELD]
        away = (found - batch[FIELD]).norm(dim=-1) / batch[FIELD].norm(dim=-1)
        of_points.append(float(away.median()))
    return one.curve[-1][1][FIELD], statistics.mean(of_points)


def main() -> None:
    own = parser(__doc__)
    own.add_argument("folder", type=Path, help="folder for the raw and the prepared cases")
    own.add_argument("--cases", type=at_least_one, default=60)
    own.add_argument("--updates", type=at_least_one, default=600)
    own.add_argument("--seeds", type=at_least_one, default=3)
    options = own.parse_args()
    torch.set_num_threads(1)
    source, prepared = options.folder / "cases", options.folder / "prepared"
    write_cases(source, options.cases)
    text = draft_map(survey_folder(source))
    assert "scaling: symmetric_log" in text
    prepare_cases(source, prepared, text, "the draft", workers=1, skip_broken=False)
    rows = []
    for scaling in SCALINGS:
        found = [errors(scaling, prepared, options, seed) for seed in range(options.seeds)]
        rows.append(row(f"{scaling}: relative L2", [one[0] for one in found]))
        rows.append(row(f"{scaling}: median over points of the relative error", [one[1] for one in found]))
    finish("decades", rows, options.json)


if __name__ == "__main__":
    told(main)

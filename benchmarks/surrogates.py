"""Compare models trained on prepared cases for equal CPU time, and baselines that need no surrogate model.

    python benchmarks/surrogates.py FOLDER --cases PREPARED [--models MODEL …] [--seeds N] [--seconds N]

Every model trains with the default recipe of `dataset=cases`, for as many updates as fit into N seconds of one core
(estimated by timing a few updates), and predicts all points of the test split. There are three baselines. The first
copies the training case with the nearest parameters, after scaling coordinates to each case's box. The second is ridge
regression on coordinates, parameters, and their squares and products. The third is a plain MLP of coordinates and
parameters, trained for N seconds. FOLDER keeps the results of each run, so a restarted benchmark resumes.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from models import Contender, this_device
from record import at_least_one, finish, parser, row, told
from torch import Tensor

from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.config.schema import RunConfig
from noether.core.data.points import Sample
from noether.core.tasks.base import Task, by_channel
from noether.launch.processes.worker import openmp_defaults
from noether.physics.fields.baselines import PlainNetwork, make_baselines
from noether.physics.fields.field_errors import field_errors

MODELS = ("mlp", "upt_small", "ab_upt_small", "transformer_small", "transolver_small")
# An update of `mlp` has 64 points per set from each of 16 cases, as in the recipe; of the others, 256 points from 4.
OTHERS = ("dataset.points_per_update=256", "dataset.geometry_points=512", "trainer.effective_batch_size=4")
TIMED_UPDATES, PLAIN_TIMED = 40, 100
RIDGE_POINTS, DAMPING = 512, 1e-6
Errors = dict[str, float]


def config_of(model: str, options: argparse.Namespace, seed: int, updates: int) -> RunConfig:
    """Return the configuration of a run: the default recipe, for the given number of updates."""
    words = ["dataset=cases", f"dataset_root={options.cases}", f"model={model}", f"seed={seed}", "accelerator=cpu"]
    own = [] if model == "mlp" else OTHERS
    return load_config([*words, *own, *options.settings, f"trainer.max_updates={updates}"])


def processor_seconds(work: Callable[[], object]) -> float:
    """Return the CPU seconds of a call."""
    began = time.process_time()
    work()
    return time.process_time() - began


def learned(model: str, options: argparse.Namespace, seed: int) -> tuple[Errors, float]:
    """Train one model for `--seconds` of CPU time; return its errors and its number of updates."""
    group = this_device()
    timed = Contender(config_of(model, options, seed, 2 * TIMED_UPDATES), group)
    timed.train(TIMED_UPDATES)
    each = processor_seconds(lambda: timed.train(TIMED_UPDATES)) / TIMED_UPDATES
    updates = max(1, round(options.seconds / each))
    one = Contender(config_of(model, options, seed, updates), group)
    one.train(updates)
    one.evaluate()
    return one.curve[-1][1], updates


def test_errors(task: Task, test: "list[Sample]", predict: Callable[[Sample, int], Mapping[str, Tensor]]) -> Errors:
    """Return the mean relative L2 of each field over the test samples."""
    found: dict[str, list[float]] = {name: [] for name in task.fields}
    for index, sample in enumerate(test):
        predicted = predict(sample, index)
        for name in task.fields:
            both = predicted[name][None], by_channel(sample[name])[None]
            found[name].append(float(field_errors(*both)["relative_l2"]))
    return {name: statistics.mean(values) for name, values in found.items()}


class Ridge:
    """Ridge regression of every field on 1, the coordinates and parameters, and their squares and products."""

    def __init__(self, samples: list[Sample], task: Task) -> None:
        self.task, self.fitted = task, {}
        for name, field in task.fields.items():
            terms, truths = [], []
            for sample in samples:
                drawn = {key: sample[key][:RIDGE_POINTS] for key in (field.points, name)}
                terms.append(self._terms({**sample, **drawn}, field.points))
                truths.append(self.task.prepare({name: drawn[name][None]})[name][0])
            a, b = torch.cat(terms).double(), torch.cat(truths).double()
            self.fitted[name] = torch.linalg.solve(a.T @ a + DAMPING * len(a) * torch.eye(a.shape[1]), a.T @ b)

    def predict(self, sample: Sample) -> dict[str, Tensor]:
        """Return the prediction (N, C) of each field of a sample, in physical units."""
        scaled = {name: (self._terms(sample, self.task.fields[name].points).double() @ own).float()[None]
                  for name, own in self.fitted.items()}  # fmt: skip
        return {name: values[0] for name, values in self.task.to_physical(scaled).items()}

    def _terms(self, sample: Sample, points: str) -> Tensor:
        known = self.task.prepare({key: sample[key][None] for key in (points, *self.task.case_inputs)})
        positions = known[points][0].float() / 500 - 1
        case = torch.cat([known[name].reshape(-1) for name in self.task.case_inputs]).float()
        x = torch.cat([positions, case.expand(len(positions), -1)], dim=1)
        one, other = torch.triu_indices(x.shape[1], x.shape[1])
        return torch.cat([torch.ones(len(x), 1), x, x[:, one] * x[:, other]], dim=1)


def baseline(name: str, options: argparse.Namespace, seed: int) -> tuple[Errors, float]:
    """Fit one baseline; return its errors and its number of updates (0 if it is not trained)."""
    problem = Contender(config_of("mlp", options, seed, 1), this_device()).run.problem
    task, splits = problem.task, problem.splits
    test = [splits.test[index] for index in range(len(splits.test))]
    train = [splits.train[index] for index in problem.train_indices]
    if name == "ridge":
        ridge = Ridge(train, task)
        return test_errors(task, test, lambda sample, index: ridge.predict(sample)), 0
    if name == "nearest case":
        return test_errors(task, test, make_baselines(task, splits.train, problem.train_indices)["nearest_case"]), 0
    each = processor_seconds(lambda: PlainNetwork(train, task, PLAIN_TIMED, seed)) / PLAIN_TIMED
    updates = round(options.seconds / each)
    network = PlainNetwork(train, task, updates, seed)
    return test_errors(task, test, network), updates


def main() -> None:
    own = parser(__doc__)
    own.add_argument("folder", type=Path, help="folder that keeps the results")
    own.add_argument("--cases", type=Path, required=True, help="a prepared data set whose cases have parameters")
    own.add_argument("--models", nargs="+", default=MODELS)
    own.add_argument("--seeds", type=at_least_one, default=3)
    own.add_argument("--seconds", type=at_least_one, default=48, help="CPU seconds per run (default 48)")
    own.add_argument("--settings", nargs="+", default=[], help="settings for all models' runs")
    options = own.parse_args()
    if waiting := openmp_defaults(os.environ):  # Restart, because libgomp reads these variables only when it is loaded.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **waiting})
    torch.set_num_threads(1)
    options.folder.mkdir(parents=True, exist_ok=True)
    baselines = {"nearest case": 1, "ridge": 1, "plain MLP": options.seeds}
    found: dict[str, list[Errors]] = {}
    updates: dict[str, list[float]] = {}
    for seed in range(options.seeds):
        for name in (*baselines, *options.models):
            if seed >= baselines.get(name, options.seeds):
                continue
            kept = options.folder / f"{name.replace(' ', '-')}-{seed}.json"
            if not kept.exists():
                try:
                    errors, made = (baseline if name in baselines else learned)(name, options, seed)
                except RequestError as refused:  # For example, Transolver needs normals, and solids have none.
                    print(f"{name}: {refused.summary}", flush=True)
                    continue
                kept.write_text(json.dumps({"errors": errors, "updates": made}))
            content = json.loads(kept.read_text())
            found.setdefault(name, []).append(content["errors"])
            updates.setdefault(name, []).append(content["updates"])
            words = ", ".join(f"{field} {error:.3f}" for field, error in content["errors"].items())
            print(f"{name}, seed {seed}, {content['updates']} updates: {words}", flush=True)
    rows = [row(f"{name}: {field}", [one[field] for one in runs]) for name, runs in found.items() for field in runs[0]]
    finish("surrogates", rows, options.json, updates=updates, seconds=options.seconds)


if __name__ == "__main__":
    told(main)

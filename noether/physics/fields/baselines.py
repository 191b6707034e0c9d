"""Baselines with which a model is compared: the mean field, the most similar training case, and a plain network."""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial

import numpy as np
import torch
from scipy.spatial import cKDTree
from torch import Tensor, nn

from noether.core.data.loader import Dataset
from noether.core.data.points import GEOMETRY, Sample
from noether.core.tasks.base import SampleMetrics, Task, by_channel
from noether.physics.fields.fields import POSITION_SCALE, FieldsTask
from noether.physics.models.points import split_channels

UPDATES, TIMES, CASES, POINTS, WIDTH = 2400, 2, 16, 64, 128
LEARNING_RATE = 5e-3
RIDGE = 1e-3
CHUNK = 65_536


class PlainNetwork:
    """A baseline that predicts fields by an MLP per set of points, and outputs of the case by a ridge regression.

    samples: the training samples, which need parameters.
    task: the task, with the fields, their scaling and the parameters.
    updates: number of updates of each network; an update reads 64 points of each of 16 cases.
    seed: seed of weights and draws; torch's global generator does not change. Attribute `seconds`: training time.
    """

    def __init__(self, samples: Sequence[Sample], task: Task, updates: int = UPDATES, seed: int = 0) -> None:
        self._task, self.updates, started = task, updates, time.perf_counter()
        self._sets: dict[str, dict[str, int]] = {}
        for name, field in task.fields.items():
            self._sets.setdefault(field.points, {})[name] = by_channel(samples[0][name]).shape[1]
        self._outputs = {name: samples[0][name].numel() for name in task.predicted if name not in task.fields}
        self._parameters = [scaled_parameters(sample, task).float() for sample in samples]
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # Updates are so small that more threads would wait for each other on busy cores.
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            self._networks = {points: self._fitted(samples, points, seed) for points in self._sets}
        torch.set_num_threads(threads)
        self._ridge = self._quadratic(samples)
        self.seconds = time.perf_counter() - started

    def __call__(self, sample: Sample, index: int) -> dict[str, Tensor]:
        """Predict a sample in physical units: fields (N, C) and outputs of the case (C,)."""
        scaled: dict[str, Tensor] = {}
        parameters = scaled_parameters(sample, self._task).float()
        for points, widths in self._sets.items():
            positions = _unit(self._task.prepare({points: sample[points][None]})[points][0])
            read = torch.cat((positions, parameters.expand(len(positions), -1)), dim=-1)
            parts = [self._networks[points](chunk) for chunk in read.split(CHUNK)]
            scaled |= split_channels(torch.cat(parts), widths)
        if self._ridge is not None:
            scaled |= split_channels((_squares(parameters[None]) @ self._ridge)[0], self._outputs)
        return {name: own[0] for name, own in self._task.to_physical({k: v[None] for k, v in scaled.items()}).items()}

    def _fitted(self, samples: Sequence[Sample], points: str, seed: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Linear(3 + len(self._parameters[0]), WIDTH), nn.GELU()]
        for _ in range(2):
            layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
        network = nn.Sequential(*layers, nn.Linear(WIDTH, sum(self._sets[points].values())))
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.updates)
        for inputs, targets in self._batches(samples, points, seed):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(inputs), targets).backward()
            optimizer.step()
            schedule.step()
        return network.requires_grad_(False)

    def _batches(self, samples: Sequence[Sample], points: str, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = np.random.default_rng(seed)
        names = self._sets[points]
        for _ in range(self.updates):
            cases = rng.choice(len(samples), min(CASES, len(samples)), replace=False).tolist()
            rows = [torch.from_numpy(rng.integers(len(samples[case][points]), size=POINTS)) for case in cases]
            drawn = {
                key: torch.stack([samples[case][key][own] for case, own in zip(cases, rows, strict=True)])
                for key in (points, *names)
            }
            scaled = self._task.prepare(drawn)
            parameters = torch.stack([self._parameters[case] for case in cases])[:, None].expand(-1, POINTS, -1)
            targets = torch.cat([scaled[name] for name in names], dim=-1).flatten(end_dim=1)
            yield torch.cat((_unit(scaled[points]), parameters), dim=-1).flatten(end_dim=1), targets.float()

    def _quadratic(self, samples: Sequence[Sample]) -> Tensor | None:
        """Return the coefficients of a ridge regression of the scaled outputs on `_squares`; None without outputs."""
        if not self._outputs:
            return None
        rows = [self._task.prepare({key: sample[key][None] for key in self._outputs}) for sample in samples]
        outputs = torch.stack([torch.cat([row[name][0] for name in self._outputs]) for row in rows])
        terms = _squares(torch.stack(self._parameters))
        damping = RIDGE * len(samples) * torch.eye(terms.shape[1])
        fitted: Tensor = torch.linalg.solve(terms.T @ terms + damping, terms.T @ outputs.float())
        return fitted


def scaled_parameters(sample: Sample, task: Task) -> Tensor:
    """Return all scaled parameters of a case as a vector (P,)."""
    scaled = task.prepare({name: sample[name][None] for name in task.case_inputs})
    return torch.cat([scaled[name].reshape(-1) for name in task.case_inputs])


def _unit(scaled: Tensor) -> Tensor:
    """Convert scaled positions, 0..1000 over the domain, to -1..1."""
    return (scaled * (2 / POSITION_SCALE) - 1).float()


def _squares(parameters: Tensor) -> Tensor:
    """Return 1, the parameters (S, P) and the products of two parameters as columns: (S, 1 + P + P(P+1)/2)."""
    rows, columns = torch.triu_indices(parameters.shape[1], parameters.shape[1]).unbind()
    return torch.cat((torch.ones(len(parameters), 1), parameters, parameters[:, rows] * parameters[:, columns]), dim=1)


COARSE_POINTS = 128
CANDIDATES = 5

Predictor = Callable[[Sample, int], dict[str, Tensor]]
"""A function that predicts all outputs of a sample from it and its index: fields (N, C), outputs of the case (C,)."""


def make_baselines(
    task: Task, train: Dataset, train_indices: Sequence[int], *, updates: int = UPDATES, among_itself: bool = False
) -> dict[str, Predictor]:
    """Return the baselines that suit the task, by name; the last two need cases with parameters.

    mean_field: the mean of the training split, at every point.
    nearest_shape: the outputs of the training shape with the smallest Chamfer distance, where a field at a point is
        copied from the nearest point of that shape. With `among_itself`, the scored samples are the training samples,
        and a sample is never compared with itself.
    nearest_case: the outputs of the training case with the most similar parameters, copied likewise, except that the
        nearest points are found in coordinates scaled to each case's box.
    plain_network: an MLP of positions and parameters for fields, and a quadratic in the parameters for outputs of the
        case. It makes two updates per update of the model (`updates`), but at most 2,400. An update takes 5 ms of CPU
        time per set of points, so that the network converges in a fraction of the run's time.
    """
    samples = [train[index] for index in train_indices]
    carry = partial(carried, samples, task, among_itself=among_itself)

    def mean_field(sample: Sample, index: int) -> dict[str, Tensor]:
        """Predict the mean, which is 0 in scaled units."""
        like = {name: by_channel(sample[name]) if name in task.fields else sample[name].reshape(-1)
                for name in task.predicted}  # fmt: skip
        physical = task.to_physical({name: torch.zeros_like(values)[None] for name, values in like.items()})
        return {name: values[0] for name, values in physical.items()}

    made: dict[str, Predictor] = {
        "mean_field": mean_field,
        "nearest_shape": carry(ShapeSearch(samples, task), boxed=False),
    }
    if task.case_inputs:
        made["nearest_case"] = carry(ParameterSearch(samples, task), boxed=True)
        made["plain_network"] = PlainNetwork(samples, task, min(TIMES * updates, UPDATES))
    return made


def score_baselines(
    task: Task,
    train: Dataset,
    train_indices: Sequence[int],
    test: Dataset,
    *,
    updates: int = UPDATES,
    among_itself: bool = False,
) -> dict[str, dict[str, float]]:
    """Score every baseline on the samples of `test`; `updates` and `among_itself` are those of `make_baselines`.

    Returns:
        {baseline: {metric: value}}. The metrics are those that the task's `summarise` computes without the loss, and
        for the plain network also training_seconds and training_updates.
    """
    baselines = make_baselines(task, train, train_indices, updates=updates, among_itself=among_itself)
    rows: dict[str, list[SampleMetrics]] = {baseline: [] for baseline in baselines}
    for index in range(len(test)):
        sample = test[index]
        batch = {name: values[None] for name, values in sample.items()}
        for baseline, predict in baselines.items():
            predicted = {name: values[None] for name, values in predict(sample, index).items()}
            known = task.physical_metrics(predicted, batch) if isinstance(task, FieldsTask) else {}
            rows[baseline].append(known | task.final_metrics(predicted, batch))
    columns = {
        baseline: {name: np.array([float(row[name]) for row in own]) for name in own[0]}
        for baseline, own in rows.items()
    }
    scores = {baseline: task.summarise(own) for baseline, own in columns.items()}
    for baseline, own in baselines.items():
        if isinstance(own, PlainNetwork):
            scores[baseline] |= {"training_seconds": own.seconds, "training_updates": own.updates}
    return scores


class ShapeSearch:
    """Search for the training shape with the smallest Chamfer distance from a sample's shape.

    All training shapes are compared on a few points; then the nearest of them are compared on all points.
    """

    def __init__(self, samples: Sequence[Sample], task: Task) -> None:
        shapes = ("surface_points", GEOMETRY, next(iter(task.fields.values())).points)
        self._shape = next(key for key in shapes if key in samples[0])
        self._points = [sample[self._shape] for sample in samples]
        self._coarse = [_few(points) for points in self._points]
        self._tree = cache(lambda shape: cKDTree(self._points[shape].numpy()))

    def nearest(self, sample: Sample, but: int | None = None) -> int:
        """Return the index of the most similar training sample, never `but` unless it is the only sample."""
        own = _few(sample[self._shape])
        distances = (torch.cdist(own, other) for other in self._coarse)
        coarse = [float(each.amin(dim=0).mean() + each.amin(dim=1).mean()) for each in distances]
        order = np.argsort(coarse, kind="stable")
        candidates = (order[order != but] if but is not None and len(order) > 1 else order)[:CANDIDATES]
        points = sample[self._shape].numpy()
        own_tree = cKDTree(points)
        exact = [
            np.mean(self._tree(shape).query(points)[0]) + np.mean(own_tree.query(self._points[shape].numpy())[0])
            for shape in candidates.tolist()
        ]
        return int(candidates[int(np.argmin(exact))])


class ParameterSearch:
    """Search for the training case whose standardised parameters are nearest to those of a sample."""

    def __init__(self, samples: Sequence[Sample], task: Task) -> None:
        self._task = task
        self._known = np.stack([scaled_parameters(sample, task).numpy() for sample in samples])

    def nearest(self, sample: Sample, but: int | None = None) -> int:
        """Return the index of the most similar training case, never `but` unless it is the only case."""
        distances = np.linalg.norm(self._known - scaled_parameters(sample, self._task).numpy(), axis=1)
        if but is not None and len(distances) > 1:
            distances[but] = np.inf
        return int(np.argmin(distances))


def carried(
    samples: Sequence[Sample], task: Task, search: ShapeSearch | ParameterSearch, *, boxed: bool, among_itself: bool
) -> Predictor:
    """Return a predictor that copies the outputs of the training sample that `search` finds.

    A field at a point is copied from the nearest point. With `boxed`, nearest points are found in coordinates that span
    0..1 along each axis of each sample. With `among_itself`, a sample is never its own nearest sample.
    """
    sets = {field.points for field in task.fields.values()}

    @cache
    def tree(case: int, points: str) -> cKDTree:
        return cKDTree(_positions(samples[case][points], boxed=boxed))

    def predict(sample: Sample, index: int) -> dict[str, Tensor]:
        case = search.nearest(sample, but=index if among_itself else None)
        rows = {points: tree(case, points).query(_positions(sample[points], boxed=boxed))[1] for points in sets}
        found = {name: samples[case][name].reshape(-1) for name in task.predicted}
        for name, field in task.fields.items():
            found[name] = by_channel(samples[case][name])[torch.from_numpy(rows[field.points])]
        return found

    return predict


def _positions(points: Tensor, *, boxed: bool) -> np.ndarray:
    values = points.numpy().astype(np.float64)
    if not boxed:
        return values
    low, size = values.min(axis=0), np.ptp(values, axis=0)
    return np.asarray((values - low) / np.where(size > 0, size, 1.0))


def _few(points: Tensor) -> Tensor:
    return points[:: max(1, len(points) // COARSE_POINTS)][:COARSE_POINTS].float()

"""The cheap learned baseline: a plain MLP of positions and parameters, trained in seconds, and a quadratic for outputs.

What somebody without a surrogate would try first; a model that does not beat it is not worth its time.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from noether.core.data.points import Sample
from noether.core.tasks.base import Task, by_channel
from noether.physics.fields.fields import POSITION_SCALE

UPDATES, CASES, POINTS, WIDTH = 600, 16, 64, 128
LEARNING_RATE = 5e-3
RIDGE = 1e-3
CHUNK = 65_536


class PlainNetwork:
    """Predicts every field by one MLP for each set of points, and outputs of the case by a ridge of their squares.

    samples: the training samples. They have parameters, which tell one case from another.
    task: its fields, scaling and parameters.
    updates: of each network, of 16 cases and 64 points of each.
    seed: of the weights and draws. The global generator is left as it is.
    """

    def __init__(self, samples: Sequence[Sample], task: Task, updates: int = UPDATES, seed: int = 0) -> None:
        self._task, self._updates = task, updates
        self._sets: dict[str, list[str]] = {}
        for name, field in task.fields.items():
            self._sets.setdefault(field.points, []).append(name)
        self._outputs = [name for name in task.predicted if name not in task.fields]
        first = samples[0]
        self._widths = {name: by_channel(first[name]).shape[1] for name in task.fields}
        self._widths |= {name: first[name].numel() for name in self._outputs}
        self._parameters = [scaled_parameters(sample, task).float() for sample in samples]
        with torch.random.fork_rng(devices=[]), torch.enable_grad():
            torch.manual_seed(seed)
            self._networks = {points: self._fitted(samples, points, seed) for points in self._sets}
        self._ridge = self._quadratic(samples)

    def predict(self, sample: Sample) -> dict[str, Tensor]:
        """Returns what is predicted of a sample, in physical units: fields (N, C), outputs of the case (C,)."""
        scaled: dict[str, Tensor] = {}
        parameters = scaled_parameters(sample, self._task).float()
        for points, names in self._sets.items():
            positions = _unit(self._task.prepare({points: sample[points][None]})[points][0])
            read = torch.cat((positions, parameters.expand(len(positions), -1)), dim=-1)
            parts = [self._networks[points](chunk) for chunk in read.split(CHUNK)]
            widths = [self._widths[name] for name in names]
            scaled |= dict(zip(names, torch.cat(parts).split(widths, dim=-1), strict=True))
        if self._ridge is not None:
            outputs = (_squares(parameters[None]) @ self._ridge)[0]
            widths = [self._widths[name] for name in self._outputs]
            scaled |= dict(zip(self._outputs, outputs.split(widths), strict=True))
        return {name: own[0] for name, own in self._task.to_physical({k: v[None] for k, v in scaled.items()}).items()}

    def _fitted(self, samples: Sequence[Sample], points: str, seed: int) -> nn.Module:
        names = self._sets[points]
        width = sum(self._widths[name] for name in names)
        layers: list[nn.Module] = [nn.Linear(3 + len(self._parameters[0]), WIDTH), nn.GELU()]
        for _ in range(2):
            layers += [nn.Linear(WIDTH, WIDTH), nn.GELU()]
        network = nn.Sequential(*layers, nn.Linear(WIDTH, width))
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE, fused=True)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self._updates)
        for inputs, targets in self._batches(samples, points, seed):
            optimizer.zero_grad()
            nn.functional.mse_loss(network(inputs), targets).backward()
            optimizer.step()
            schedule.step()
        return network.requires_grad_(False)

    def _batches(self, samples: Sequence[Sample], points: str, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        rng = np.random.default_rng(seed)
        names = self._sets[points]
        for _ in range(self._updates):
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
        """Ridge regression of the scaled outputs on 1, the parameters and their products; None without outputs."""
        if not self._outputs:
            return None
        rows = [self._task.prepare({key: sample[key][None] for key in self._outputs}) for sample in samples]
        outputs = torch.stack([torch.cat([row[name][0] for name in self._outputs]) for row in rows])
        terms = _squares(torch.stack(self._parameters))
        damping = RIDGE * len(samples) * torch.eye(terms.shape[1])
        fitted: Tensor = torch.linalg.solve(terms.T @ terms + damping, terms.T @ outputs.float())
        return fitted


def scaled_parameters(sample: Sample, task: Task) -> Tensor:
    """The scaled parameters (P,) of a case."""
    scaled = task.prepare({name: sample[name][None] for name in task.case_inputs})
    return torch.cat([scaled[name].reshape(-1) for name in task.case_inputs])


def _unit(scaled: Tensor) -> Tensor:
    """Scaled positions as -1..1 of the domain."""
    return (scaled * (2 / POSITION_SCALE) - 1).float()


def _squares(parameters: Tensor) -> Tensor:
    """1, the parameters (S, P) and their products: (S, 1 + P + P(P+1)/2)."""
    rows, columns = torch.triu_indices(parameters.shape[1], parameters.shape[1]).unbind()
    return torch.cat((torch.ones(len(parameters), 1), parameters, parameters[:, rows] * parameters[:, columns]), dim=1)

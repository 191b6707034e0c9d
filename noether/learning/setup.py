"""What is learned: the data, the task with its statistics, and the model, built from a configuration."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from noether.checkpoints.state import seed_everything
from noether.config.schema import RunConfig
from noether.data.build import Splits, open_splits
from noether.data.checks import checked_samples
from noether.data.order import split_validation
from noether.data.points import PointDraw
from noether.learning.first_sample import check_sample
from noether.learning.precision import Precision
from noether.models.build import build_model
from noether.tasks.base import Task
from noether.tasks.build import build_task


@dataclass(frozen=True)
class Problem:
    """The data, the task and the model of a run; the model is on its device, the task not yet fitted."""

    splits: Splits
    train_indices: list[int]
    validation_indices: list[int]
    draw: PointDraw
    task: Task
    model: nn.Module

    def fit_task(self) -> None:
        """Computes the task's statistics over the training samples, the validation split left out.

        RequestError: an array that is used is not finite, or does not fit the first sample's; it names the sample.
        """
        fields = getattr(self.task, "fields", {})
        rows = {name: points for name, field in fields.items() if (points := getattr(field, "points", None))}
        used = {*rows, *rows.values(), *getattr(self.task, "inputs", ())}
        samples = checked_samples(
            self.splits.train, self.train_indices, rows, used=used, shorten=self.draw.for_statistics
        )
        self.task.fit(samples)


def place_model(model: nn.Module, device: torch.device, precision: Precision) -> nn.Module:
    """Moves a model to its device, with its weights and buffers in the precision of the run.

    Complex ones stay complex, of the same precision: `module.to(dtype)` would drop their imaginary parts.
    """
    model = model.to(device)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.to(precision.type_of(tensor))
    return model


def build_problem(config: RunConfig, folder: Path | None, device: torch.device, precision: Precision) -> Problem:
    """Builds a run's problem. The initial weights follow from the seed and are the same on every rank."""
    splits = open_splits(config, folder)
    train, validation = split_validation(len(splits.train), config.dataset.validation_fraction)
    if splits.validation is not None:
        validation = list(splits.validation)
        train = sorted(set(range(len(splits.train))) - set(validation))
    task = build_task(config.task.kind, **config.task.options())
    for split in (splits.train, splits.test):
        check_sample(split[0], task)
    seed_everything(config.seed)
    model = place_model(build_model(config.model.kind, **config.model.options()), device, precision)
    pad = task.reads_masks and getattr(model, "reads_masks", False)
    draw = PointDraw(
        config.seed,
        config.dataset.points_per_update,
        config.dataset.geometry_points,
        pad,
        shuffled=getattr(splits.train, "points_are_shuffled", False),
        evaluation=getattr(config.dataset, "evaluation_points", {}),
    )
    return Problem(splits, train, validation, draw, task, model)

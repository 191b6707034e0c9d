"""Build a run's problem from its configuration: the data, the task with its statistics, and the model."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from noether.common.errors import RequestError
from noether.config.schema import RunConfig
from noether.core.data.build import STREAM_KNOWN, OwnStream, Splits, check_stream_length, open_splits
from noether.core.data.checks import checked_samples, data_identity
from noether.core.data.layout import about_data
from noether.core.data.loader import seed_everything, type_like
from noether.core.data.order import split_validation
from noether.core.data.points import GEOMETRY, PointSampler, shape_key
from noether.core.models.build import REGISTRY, build_model, model_class
from noether.core.precision import Precision
from noether.core.tasks.base import Task, build_task, check_state


@dataclass(frozen=True)
class Problem:
    """The data, the task and the model of a run; the model is on its device, the task is not yet fitted.

    data: the identity of the data, as `data_identity` returns it.
    """

    splits: Splits
    train_indices: Sequence[int]
    validation_indices: Sequence[int]
    draw: PointSampler
    task: Task
    model: nn.Module
    data: Mapping[str, Any]

    @property
    def known_indices(self) -> Sequence[int]:
        """The indices of samples for statistics and baselines: all training samples, or the first ones of a stream."""
        return self.train_indices[: STREAM_KNOWN if isinstance(self.splits.train, OwnStream) else None]

    def fit(self) -> None:
        """Compute the statistics of the task, and of the model if it has any, over the training samples.

        RequestError: the task cannot use a sample, or a checkpoint could not store the statistics of the task.
        """
        before = dict(vars(self.task))
        self.task.fit(_Samples(self))
        check_state(self.task, before)
        if fit_inputs := getattr(self.model, "fit_inputs", None):
            batches = ({key: value[None] for key, value in sample.items()} for sample in _Samples(self))
            fit_inputs(map(self.task.prepare, batches))


class _Samples:
    """The training samples; each is checked every time it is read."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        problem, task = self._problem, self._problem.task
        rows = {name: field.points for name, field in task.fields.items()}
        return checked_samples(
            problem.splits.train, problem.known_indices, rows, inputs=task.inputs,
            used={*task.truths, *rows.values(), *task.case_inputs}, shorten=problem.draw.for_statistics,
        )  # fmt: skip


def place_model(model: nn.Module, device: torch.device, precision: Precision) -> nn.Module:
    """Move a model to its device, with its weights and buffers in the run's precision.

    Complex tensors stay complex, in that precision: `module.to(dtype)` would drop their imaginary parts.
    """
    model = model.to(device)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.data = tensor.data.to(type_like(tensor, precision.weights))
    return model


def point_draw(config: RunConfig, task: Task, model: nn.Module, *, shuffled: bool = False) -> PointSampler:
    """Return the sampler of a run's points; shuffled: True if the points are stored in random order."""
    settings, pad = config.dataset, task.reads_masks and getattr(model, "reads_masks", False)
    return PointSampler(
        config.seed,
        getattr(model, "points_per_update", {}) if settings.points_per_update is None else settings.points_per_update,
        settings.geometry_points or getattr(model, "geometry_points", None),
        pad,
        task.inputs,
        shuffled=shuffled,
        evaluation=getattr(settings, "evaluation_points", {}),
    )


def check_needs(kind: str, task: Task, sample: Mapping[str, Tensor]) -> None:
    """Refuse samples that lack a key that the model reads; the error names a model that does not need this key."""
    layout, model = task.layout(), model_class(kind)
    needs = getattr(model, "needs", None)
    if layout is None or needs is None:
        return
    model.check_layout(layout)
    have = {*sample, *([GEOMETRY] if shape_key(sample) else [])}
    absent = [key for key in needs(layout) if key not in have]
    if not absent:
        return
    others = [other for other in REGISTRY if set(getattr(model_class(other), "needs", lambda _: ["*"])(layout)) <= have]
    raise RequestError(
        "samples-lack-inputs", f"{model.__name__} reads {', '.join(absent)}, which the samples do not have",
        seen=", ".join(sample), expected=f"{', '.join(needs(layout))} in every sample, or another model",
        fix=f"model={others[0]}" if others else f"give the samples {', '.join(absent)}",
    )  # fmt: skip


def held_out(config: RunConfig, splits: Splits) -> tuple[Sequence[int], Sequence[int]]:
    """Return the indices in the training split that a run trains on, and the indices held out for validation."""
    trainer, stream = config.trainer, splits.train
    if isinstance(stream, OwnStream):
        check_stream_length(stream.dataset, config)
        if not hasattr(stream.dataset, "__len__"):
            updates = trainer.max_updates or (trainer.max_samples or 0) // trainer.effective_batch_size
            stream.samples = max(1, updates) * trainer.effective_batch_size
        return range(stream.samples), range(stream.samples, len(stream))
    if splits.validation is not None:
        return sorted(set(range(len(splits.train))) - set(splits.validation)), list(splits.validation)
    return split_validation(len(splits.train), config.dataset.validation_fraction)


def check_held_out(validation: Sequence[int], otherwise: str) -> None:
    """Raise RequestError if a run held out no sample; `otherwise` is a fix that needs no validation split."""
    if not validation:
        raise RequestError("nothing-held-out", "the run has no validation split", seen="0 samples held out",
                           expected="samples on which the run was not trained",
                           fix=f"{otherwise}      (or train again with dataset.validation_fraction=0.1)")  # fmt: skip


def build_problem(config: RunConfig, folder: Path | None, device: torch.device, precision: Precision) -> Problem:
    """Build a run's problem. The seed determines the initial weights, which are the same on every rank."""
    splits = open_splits(config, folder)
    train, validation = held_out(config, splits)
    task = build_task(config.task.kind, **config.task.options())
    for split in (splits.test, splits.train):
        task.examine(split[0], about_data(split))
    if train:
        check_needs(config.model.kind, task, splits.train[train[0]])
    data = data_identity(splits)
    seed_everything(config.seed)  # after everything that reads samples, which may draw random numbers
    model = place_model(build_model(config.model.kind, task.layout(), **config.model.options()), device, precision)
    draw = point_draw(config, task, model, shuffled=getattr(splits.train, "points_are_shuffled", False))
    return Problem(splits, train, validation, draw, task, model, data)

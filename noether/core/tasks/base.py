"""The base class of tasks, which turn a model's predictions into a loss and metrics."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from noether.common.errors import RequestError
from noether.config.section import FieldConfig
from noether.core.components import Component, methods_of
from noether.core.data.layout import Layout
from noether.core.data.loader import Batch
from noether.registry import code_of
from noether.runs.metrics import Metric

Predictions = dict[str, Tensor]
SampleMetrics = dict[str, Tensor]
"""Metrics of each sample of a batch, (B,) by name: gathered over ranks, so that each sample counts once."""


class Evaluated(Predictions):
    """Predictions of an evaluation, in the model's units, with what they are in physical ones once that is known."""

    physical: Predictions | None = None


class Task:
    """Turns predictions into a loss and metrics. A user's own task derives from this and must define `loss`.

    The other methods have defaults. The metrics are the loss of each sample (of its batch where samples are compared);
    the others say what is known of them, which point errors an evaluation collects, which baselines are scored beside
    it, and which parts a report has.
    """

    reads_masks = False
    """Whether padded batches are understood: points where `<set>_mask` is False count nothing."""
    compares_samples: bool | None = None
    """Whether the loss is no mean over samples, but depends on which share a batch; None: found out by trying it."""
    fields: Mapping[str, FieldConfig] = {}
    """The fields at points that are predicted; pictures, baselines and files for ParaView are made of these."""
    inputs: tuple[str, ...] = ()
    """Keys that the model reads at each point beside what is known of the shape."""
    baselines: bool = False
    """Whether the metrics of `evaluation.baselines` stand beside the model's."""
    report_parts: tuple[str, ...] = ("errors",)
    """Which parts of a report make sense: errors, cases, scalars, distributions, classes."""

    @property
    def truths(self) -> tuple[str, ...]:
        """The keys of a sample that are scored against, and that no model is to read. Default: the fields."""
        return tuple(self.fields)

    @property
    def case_inputs(self) -> tuple[str, ...]:
        """The keys of what a model reads of a whole case. Default: none."""
        return ()

    @property
    def predicted(self) -> tuple[str, ...]:
        """The names of what a model predicts. Default: the fields."""
        return tuple(self.fields)

    def examine(self, sample: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Look at one sample, and at what the data set says of itself, before anything is built. Default: nothing.

        RequestError: the samples cannot be what this task was configured for.
        """

    def layout(self) -> Layout | None:
        """Return what a model must predict and read; None: a model is built from its own options alone."""
        return None

    def fit(self, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Compute what the task must know of the training split (statistics), of samples that have been checked.

        Default: nothing.
        """

    def state(self) -> dict[str, Any]:
        """Return what `fit` found, for JSON: it is stored in every checkpoint."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the model sees it (scaled, standardised). Default: as it is."""
        return batch

    def loss(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Return the mean loss over the batch's samples, a scalar. `batch` is prepared."""
        raise NotImplementedError

    @property
    def updates_itself(self) -> bool:
        """Whether the task makes its own updates, by `update`: the trainer then never asks for `loss` or `counts`."""
        return type(self).update is not Task.update

    def optimizers(self, model: nn.Module) -> Mapping[str, nn.Module | Sequence[nn.Parameter]]:
        """Return the parts of the model, modules or parameters, that `update` steps, by the names of their optimisers.

        Each part has an optimiser as the settings describe it. Each parameter that is trained belongs to one part.
        Default: the children of the model that have something to train.
        """
        children = model.named_children()
        return {name: part for name, part in children if any(one.requires_grad for one in part.parameters())}

    def update(self, batch: Batch, model: nn.Module, optimizers: Any) -> Mapping[str, Tensor | float]:
        """Make one update by itself, of this rank's share of the batch, and return numbers that are logged.

        `batch` is prepared. `optimizers[NAME].step(loss, rate=1.0)` makes one step of a part: gradients of that part
        alone, their mean over the ranks, clipping, and a step at `rate` times the schedule's learning rate. Every rank
        has to make the same steps. `optimizers.updates`: how many updates were made before. Default: the trainer makes
        the update, of `loss`.
        """
        raise NotImplementedError

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Return metrics of each sample, (B,) by name, `loss` among them. `batch` is as the data set gave it.

        Default: the loss of each sample by itself; where the loss compares samples, that of the batch.
        """
        prepared = self.prepare(batch)
        samples = len(next(iter(prepared.values())))
        if self.compares_samples:
            return {"loss": self.loss(predictions, prepared).expand(samples)}

        def alone(of: Mapping[str, Tensor], i: int) -> dict[str, Tensor]:
            return {key: value[i : i + 1] if value.ndim else value for key, value in of.items()}

        each = [self.loss(alone(predictions, i), alone(prepared, i)) for i in range(samples)]
        return {"loss": torch.stack(each)}

    def counts(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Return sums over a training batch's samples, scalars by name, of which each epoch ends with the means.

        Default: nothing, and no line for an epoch.
        """
        return {}

    def final_metrics(self, physical: Predictions, batch: Batch) -> SampleMetrics:
        """Return metrics of physical predictions, a baseline's too, for a final evaluation. Default: nothing."""
        return {}

    def to_physical(self, predictions: Predictions) -> Predictions:
        """Return predictions in physical units. Default: as they are."""
        return predictions

    def size_key(self, name: str, keys: Iterable[str]) -> str | None:
        """Return the key of the area or volume of a field's points, of those that samples have. Default: none."""
        return None

    def describe_metrics(self) -> Iterable[Metric]:
        """Return what is known of the metrics that `summarise` returns: unit, direction. Default: nothing."""
        return ()

    def summarise(self, samples: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Turn the metrics of all samples, (S,) by name, into those of the split. Default: their means."""
        return {name: float(np.mean(values)) for name, values in samples.items()}

    def ranking(self, samples: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the errors (S,), of the metrics of all samples, by which cases are shown. Default: the loss."""
        return samples["loss"]

    def results(self, samples: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return what else result.json says of a split, from its samples' metrics and its own. Default: nothing."""
        return {}


def check_state(task: Task, before: Mapping[str, Any]) -> None:
    """Refuse a task that has fitted what neither a checkpoint nor another rank would get; `before`: its attributes."""
    kind, state = type(task).__name__, task.state()
    fitted = [name for name, value in vars(task).items() if before.get(name) is not value]
    lost = not state or type(task).load_state is Task.load_state
    seen = f"fit sets self.{fitted[0]}, and {'load_state' if state else 'state'} is not defined" if fitted else ""
    try:
        json.dumps(state)
    except (TypeError, ValueError) as error:
        lost, seen = True, f"state(): {error}"
    if lost and seen:
        raise RequestError(
            "task-state-unusable", f"no checkpoint can keep what {kind}.fit has found", seen=seen,
            expected="a dictionary of numbers, texts and lists from `state`, which `load_state` takes back",
            fix=f'def state(self): return {{"mean": self.mean.tolist()}} and def load_state(self, state) in {kind}',
        )  # fmt: skip


def check_predictions(predictions: Any, shapes: Mapping[str, tuple[int, ...]], fix: str) -> None:
    """Refuse predictions of the wrong shape, which would be broadcast and silently trained on.

    shapes: what is expected, by name.
    """

    fix = f"fix the forward of model.kind, or {fix}"
    if not isinstance(predictions, Mapping):
        raise RequestError("predictions-not-a-dictionary", "the model returns no dict", seen=type(predictions).__name__,
                           expected=f"a dict with {', '.join(shapes)}", fix=fix)  # fmt: skip
    for name, expected in shapes.items():
        if name not in predictions:
            raise RequestError("prediction-missing", f"the model predicts no {name}",
                               seen=", ".join(predictions) or "nothing", expected=f"{name} {expected}",
                               fix=fix)  # fmt: skip
        if (seen := tuple(predictions[name].shape)) != expected:
            raise RequestError("prediction-shape", f"the model's {name} has the wrong shape", seen=str(seen),
                               expected=str(expected), fix=fix)  # fmt: skip


def by_channel(values: Tensor, *, batched: bool = False) -> Tensor:
    """Give a scalar field its channel axis: (N,) → (N, 1); with `batched` (B, N) → (B, N, 1)."""
    return values.unsqueeze(-1) if values.ndim == (2 if batched else 1) else values


REGISTRY = code_of("task")
"""The tasks that come with noether, by the short name that `task.kind` takes."""


def task_component(kind: str, options: Mapping[str, Any]) -> Component:
    """Return what `task.kind` names: one of ours, or the user's own by dotted path."""
    needed = {"loss": ("the mean loss over the batch's samples, a scalar tensor", "update")}
    return Component("task", kind, options, REGISTRY, base=Task, calls=methods_of(Task), needed=needed)


def build_task(kind: str, **options: Any) -> Task:
    """Make the task that `task.kind` names. RequestError: there is none, or no run can call it with these options."""
    task: Task = task_component(kind, options).build()
    return task

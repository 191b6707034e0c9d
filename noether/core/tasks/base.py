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
"""{metric: values (B,)} of a batch's samples. The values of all ranks are gathered, so that each sample counts once."""


class Evaluated(Predictions):
    """Predictions of an evaluation, in the model's units; `physical` caches their physical values."""

    physical: Predictions | None = None


class Task:
    """Turns predictions into a loss and metrics. A user's own task derives from this class and must define `loss`.

    The other methods have defaults. By default the only metric is each sample's loss (its batch's loss if samples are
    compared). Further methods describe the metrics, choose the point errors and the baselines of an evaluation, and
    choose the parts of a report.
    """

    reads_masks = False
    """True if the task handles padded batches: points with a False `<set>_mask` do not count."""
    compares_samples: bool | None = None
    """True: the loss depends on which samples share a batch; False: it is a mean over samples; None: not known yet."""
    fields: Mapping[str, FieldConfig] = {}
    """The predicted fields at points, used for pictures, baselines and files for ParaView."""
    inputs: tuple[str, ...] = ()
    """The keys of arrays that the model reads at each point, besides the arrays of the shape."""
    baselines: bool = False
    """True if baselines are scored beside the model in an evaluation."""
    report_parts: tuple[str, ...] = ("errors",)
    """The parts of a report that apply: errors, cases, scalars, distributions, classes."""

    @property
    def truths(self) -> tuple[str, ...]:
        """The keys of a sample's true values, which no model may read. Default: the fields."""
        return tuple(self.fields)

    @property
    def case_inputs(self) -> tuple[str, ...]:
        """The keys of inputs that belong to a whole case. Default: none."""
        return ()

    @property
    def predicted(self) -> tuple[str, ...]:
        """The names of a model's predictions. Default: the fields."""
        return tuple(self.fields)

    def examine(self, sample: Mapping[str, Tensor], about: Mapping[str, Any]) -> None:
        """Examine one sample and the data set's `about` before anything is built. Default: do nothing.

        RequestError: the samples do not fit the task's configuration.
        """

    def layout(self) -> Layout | None:
        """Return the names and widths of a model's inputs and outputs; None: its options alone define the model."""
        return None

    def fit(self, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Compute statistics of the training split from checked samples.

        Default: do nothing.
        """

    def state(self) -> dict[str, Any]:
        """Return the results of `fit` in a form for JSON; every checkpoint stores them."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore what `state` returned."""

    def prepare(self, batch: Batch) -> Batch:
        """Return the batch as the model receives it (scaled, standardised). Default: unchanged."""
        return batch

    def loss(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Return the mean loss over the batch's samples, a scalar. `batch` is prepared."""
        raise NotImplementedError

    @property
    def updates_itself(self) -> bool:
        """True if the task makes its own updates by `update`; the trainer then never calls `loss` or `counts`."""
        return type(self).update is not Task.update

    def optimizers(self, model: nn.Module) -> Mapping[str, nn.Module | Sequence[nn.Parameter]]:
        """Return {name of the optimiser: the module or parameters that it steps} for `update`.

        Each part gets an optimiser as the settings describe it. Each trained parameter belongs to exactly one part.
        Default: the children of the model that have parameters to train.
        """
        children = model.named_children()
        return {name: part for name, part in children if any(one.requires_grad for one in part.parameters())}

    def update(self, batch: Batch, model: nn.Module, optimizers: Any) -> Mapping[str, Tensor | float]:
        """Make one update with this rank's share of the batch, and return metrics to log.

        `batch` is prepared. `optimizers[NAME].step(loss, rate=1.0)` makes one step of a part: it computes the gradients
        of that part only, averages them over the ranks, clips them, and steps at `rate` times the schedule's learning
        rate. Every rank must make the same steps. `optimizers.updates` is the number of updates already made.
        Default: the trainer makes the update from `loss`.
        """
        raise NotImplementedError

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Return {metric: values (B,)} of a batch's samples, including `loss`. `batch` is not prepared.

        Default: the loss of each sample alone; if the loss compares samples, the loss of the batch.
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
        """Return {name: sum over a training batch's samples}; after an epoch, the means over its samples are logged.

        Default: an empty dict, and no log row for an epoch.
        """
        return {}

    def final_metrics(self, physical: Predictions, batch: Batch) -> SampleMetrics:
        """Return the metrics that a final evaluation adds to `metrics`, from physical predictions. Default: none."""
        return {}

    def to_physical(self, predictions: Predictions) -> Predictions:
        """Return predictions in physical units. Default: unchanged."""
        return predictions

    def size_key(self, name: str, keys: Iterable[str]) -> str | None:
        """Return the key in `keys` of the areas or volumes of the points of the field `name`. Default: None."""
        return None

    def describe_metrics(self) -> Iterable[Metric]:
        """Return unit and direction of the metrics that `summarise` returns. Default: none."""
        return ()

    def summarise(self, samples: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Turn {metric: values (S,)} of all samples into metrics of the split. Default: the means."""
        return {name: float(np.mean(values)) for name, values in samples.items()}

    def ranking(self, samples: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the errors (S,) that rank the cases to show, from the metrics of all samples. Default: the loss."""
        return samples["loss"]

    def results(self, samples: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return a split's further entries of result.json, from its samples' metrics and its own. Default: none."""
        return {}


def check_state(task: Task, before: Mapping[str, Any]) -> None:
    """Refuse a task whose `fit` set attributes that `state` omits; `before`: the task's attributes before `fit`."""
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
            "task-state-unusable", f"a checkpoint cannot store the results of {kind}.fit", seen=seen,
            expected="a dictionary of numbers, texts and lists from `state`, which `load_state` restores",
            fix=f'def state(self): return {{"mean": self.mean.tolist()}} and def load_state(self, state) in {kind}',
        )  # fmt: skip


def check_predictions(predictions: Any, shapes: Mapping[str, tuple[int, ...]], fix: str) -> None:
    """Refuse predictions of the wrong shape, which would be broadcast and silently trained on.

    shapes: the expected shapes by name.
    """

    fix = f"fix the forward of model.kind, or {fix}"
    if not isinstance(predictions, Mapping):
        raise RequestError("predictions-not-a-dictionary", "the model does not return a dict", fix=fix,
                           seen=type(predictions).__name__, expected=f"a dict with {', '.join(shapes)}")  # fmt: skip
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
"""{short name for `task.kind`: dotted path} of the built-in tasks."""


def task_component(kind: str, options: Mapping[str, Any]) -> Component:
    """Return the component that `task.kind` names: a built-in task, or user code by dotted path."""
    needed = {"loss": ("the mean loss over the batch's samples, a scalar tensor", "update")}
    return Component("task", kind, options, REGISTRY, base=Task, calls=methods_of(Task), needed=needed)


def build_task(kind: str, **options: Any) -> Task:
    """Build the task that `task.kind` names. RequestError: it does not exist, or does not accept these options."""
    task: Task = task_component(kind, options).build()
    return task

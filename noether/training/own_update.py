"""Updates that a task makes itself (`Task.update`), with several optimisers, each for a part of the model."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.utils import get_total_norm

from noether.common.errors import RequestError
from noether.common.numbers import first_of
from noether.config.trainer import TrainerConfig
from noether.core.data.loader import Batch
from noether.core.models.build import TensorModel
from noether.core.tasks.base import Task
from noether.runs.metrics import OF_THE_LOOP
from noether.runs.records import POSITION
from noether.training.gathered import alike
from noether.training.optimizers import JoinedOptimizer
from noether.training.time_use import Part, UpdateMetrics
from noether.training.update import Updater

RESERVED = {*POSITION, *(metric.name for metric in OF_THE_LOOP), "time_use", "slowest"} - {"loss"}
"""Names in the log rows of training, which a task may not use."""


def check_own_update(kind: Any, trainer: TrainerConfig, accumulation_steps: int) -> None:
    """Raise RequestError if the class's own update is unusable, or cannot be used with these settings."""
    if not (isinstance(kind, type) and issubclass(kind, Task)) or kind.update is Task.update:
        return
    if kind.metrics is Task.metrics and kind.loss is Task.loss:
        expected = "a method `metrics` whose metrics of each sample include `loss`, by which weights are compared"
        raise _unusable(kind, "`update` without `metrics`", expected)
    expected = "one micro-batch per rank, no loss scaler and no compilation, because the task makes the passes"
    several = trainer.max_batch_size == "auto" or accumulation_steps > 1
    cannot = {"precision=bf16": trainer.precision == "fp16", "compile=false": trainer.compile}
    for instead, is_set in {**cannot, "max_batch_size=null": several}.items():
        if is_set:
            name = instead.partition("=")[0]
            seen = f"trainer.{name}={getattr(trainer, name)}, {accumulation_steps} micro-batches on a rank"
            raise _unusable(kind, seen, expected, f"trainer.{instead}")


def parts_of(task: Task, model: nn.Module) -> dict[str, nn.Module]:
    """Return the parts of a model by the names of their optimisers; {} if the trainer makes the updates.

    RequestError: a trained parameter belongs to no part or to two parts, or a part has nothing to train.
    """
    if not task.updates_itself:
        return {}
    found: Any = task.optimizers(_plain(model))
    named = found.items() if isinstance(found, Mapping) else ()
    parts = {name: part if isinstance(part, nn.Module) else nn.ParameterList(part) for name, part in named}
    owners = {id(value): (name, list[str]()) for name, value in model.named_parameters()}
    wrong = "" if parts else f"a {type(found).__name__} without parts"
    for name, part in parts.items():
        own = list(part.parameters())
        if not any(one.requires_grad for one in own) or not {*map(id, own)} <= owners.keys():
            wrong = f"{name}: nothing to train, or parameters that the model does not have"
            break
        for one in own:
            owners[id(one)][1].append(name)
    trained = [owners[id(one)] for one in model.parameters() if one.requires_grad]
    if bad := wrong or next((f"{name} in {first_of(of, 3) or 'no part'}" for name, of in trained if len(of) != 1), ""):
        expected = "a dictionary of the model's parts from `optimizers`, with each trained parameter in one part"
        raise _unusable(type(task), bad, expected)
    return parts


class OwnUpdater(Updater):
    """An updater that lets the task make each update; each step of a part treats gradients as `Updater` does."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        model, joined = self.state.model, self.state.optimizer
        assert isinstance(joined, JoinedOptimizer)
        self.group.copy_from_first(tensor.detach() for tensor in (*model.parameters(), *model.buffers()))
        self.optimizers = Optimizers({name: PartOptimizer(name, part, self) for name, part in joined.parts.items()})

    def update(self, batches: Sequence[Batch], learning_rate: float) -> UpdateMetrics:
        """Make one update, as `Updater.update` does."""
        task, self.batches, self.learning_rate = self.state.task, batches, learning_rate
        self.before = [buffer.clone() for buffer in self.statistics]
        self.losses: list[Tensor] = []
        self.norms: list[Tensor] = []
        self.skipped: str | None = None
        self.optimizers.updates = self.state.progress.updates
        self.clock.switch(Part.FORWARD)
        with self.precision.autocast():
            returned: Any = task.update(task.prepare(batches[0]), _plain(self.state.model), self.optimizers)
        if not self.losses:
            raise _unusable(type(task), "an update without a step", "optimizers[NAME].step(loss) in every update")
        numbers: dict[str, Any] = dict(returned) if isinstance(returned, Mapping) else {"returned": returned}
        for name, value in numbers.items():
            if name in RESERVED or not (isinstance(value, (int, float)) or getattr(value, "ndim", 1) == 0):
                expected = f"a dictionary of numbers, by other names than {', '.join(sorted(RESERVED))}"
                raise _unusable(type(task), f"{name}: {repr(value)[:80]}", expected)
            numbers[name] = torch.as_tensor(value, dtype=self.precision.weights).detach()
        loss = numbers.pop("loss", torch.stack(self.losses).sum())
        return self._made(UpdateMetrics(loss, torch.stack(self.norms).norm(), self.skipped, numbers=numbers))

    def step(self, part: "PartOptimizer", loss: Tensor, rate: float) -> None:
        """Make one step of a part, unless its gradient is not finite."""
        self.clock.switch(Part.BACKWARD)
        part.clear()
        if is_scalar := isinstance(loss, Tensor) and not loss.ndim and loss.requires_grad:
            with torch.autocast(self.precision.device_type, enabled=False):
                loss.backward(inputs=part.parameters)
            self.clock.switch(Part.REDUCTION)
            self._average(part)
        gradients = [parameter.grad for parameter in part.parameters if parameter.grad is not None]
        if not gradients:
            seen = f"{part.name}: " + ("a loss without its weights" if is_scalar else repr(loss)[:80])
            raise _unusable(type(self.state.task), seen, "a scalar that depends on the weights of the part")
        self.clock.switch(Part.OPTIMIZER)
        self.losses.append(loss.detach().to(self.precision.weights))
        self.norms.append(norm := get_total_norm(gradients))
        self.stepped = part.name
        skipped = self._why_not(norm, self.batches, self.before, again=self.skipped is not None)
        if skipped is None:
            self._step(part.optimizer, part.parameters, norm, self.learning_rate * rate)
        self.skipped = self.skipped or skipped
        part.clear()
        torch.clear_autocast_cache()  # It holds the old weights in the precision of the forward pass.
        self.clock.switch(Part.FORWARD)

    def _average(self, part: "PartOptimizer") -> None:
        """Replace each gradient by its mean over the ranks; a gradient is None only if no rank has it."""
        if self.group.world_size == 1:
            return
        if not alike(step := f"steps {part.name} of update {self.optimizers.updates + 1}", self.group):
            seen = f"rank {self.group.rank} {step}, and another rank does not"
            raise _unusable(type(self.state.task), seen, "the same steps in the same order on every rank")
        parameters = part.parameters
        own = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        real = [torch.view_as_real(one) if one.is_complex() else one for one in own]
        have = torch.tensor([one.grad is not None for one in parameters]).to(real[0])
        flat = torch.cat([*(one.reshape(-1) for one in real), have])
        with self.group.parent.waiting("all_reduce of the gradients"):
            dist.all_reduce(flat)
        *means, had = (flat / self.group.world_size).split([*(one.numel() for one in real), len(have)])
        for position, (parameter, mean) in enumerate(zip(parameters, means, strict=True)):
            if parameter.grad is not None or had[position]:
                parameter.grad = mean.view(parameter.dtype).view_as(parameter)  # Complex: pairs of real numbers.

    def _causes(self, batches: Sequence[Batch]) -> list[str]:
        return super()._causes(batches) or [f"the loss that steps {self.stepped}, {self.losses[-1]:.4g}"]


class PartOptimizer:
    """The optimiser of one part, for `Task.update`; the attribute `optimizer` is the optimiser of torch."""

    def __init__(self, name: str, optimizer: torch.optim.Optimizer, updater: OwnUpdater) -> None:
        self.name, self.optimizer, self._updater = name, optimizer, updater
        self.parameters = [one for group in optimizer.param_groups for one in group["params"]]

    def step(self, loss: Tensor, rate: float = 1.0) -> None:
        """Make one step down the gradient of `loss` (), at `rate` times the schedule's learning rate.

        RequestError: the loss does not depend on the part's weights.
        """
        self._updater.step(self, loss, rate)

    def clear(self) -> None:
        """Drop the part's gradients."""
        for parameter in self.parameters:
            parameter.grad = None


class Optimizers(dict[str, PartOptimizer]):
    """{name: optimiser of a part}; the attribute `updates` is the number of updates made before the current one."""

    updates = 0


def _plain(model: nn.Module) -> nn.Module:
    """Return the user's own model, without the wrapper that names its tensors (model.input, model.output)."""
    return model.model if isinstance(model, TensorModel) else model


def _unusable(kind: type[Task], seen: str, expected: str, fix: str = "") -> RequestError:
    name = kind.__name__
    return RequestError("own-update-unusable", f"{name} cannot make the updates of a run", seen=seen, expected=expected,
                        fix=fix or f"change {name} of {kind.__module__}")  # fmt: skip

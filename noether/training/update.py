"""One update: micro-batches → one gradient, agreed by all ranks → one step of the optimiser."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from math import isfinite
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from noether.checkpoints.state import TrainingState
from noether.common.errors import NoetherError, RequestError
from noether.common.numbers import first_of
from noether.config.trainer import TrainerConfig
from noether.core.data.loader import Batch
from noether.core.precision import Precision, evaluation_mode, restored_afterwards
from noether.core.tasks.base import Predictions
from noether.launch.process_group.group import Group
from noether.launch.process_group.torch_internals import LightDDP, foreach
from noether.training.gathered import Together
from noether.training.rehearsal import loss_of
from noether.training.time_use import Clock, Part, UpdateMetrics


class NonFiniteError(NoetherError):
    """The gradient was not finite, and the policy says to stop."""


class DeferredFiniteCheck:
    """Reads whether a gradient was finite one update later, when reading it no longer waits for the device."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, torch.cuda.Event | None, Sequence[Batch]] | None = None

    def at(self, norm: Tensor, batches: Sequence[Batch]) -> Sequence[Batch] | None:
        """Notes this update's gradient norm; returns the batches of the one before, where that was not finite."""
        bad = self.settle()
        answer = torch.empty((), dtype=norm.dtype, pin_memory=norm.is_cuda)
        answer.copy_(norm.detach(), non_blocking=True)
        event = None
        if norm.is_cuda:
            event = torch.cuda.Event()
            event.record()
        self._pending = (answer, event, batches)
        return bad

    def settle(self) -> Sequence[Batch] | None:
        """Returns the batches of the last update noted, where its gradient was not finite; waits for the answer."""
        if self._pending is None:
            return None
        answer, event, batches = self._pending
        self._pending = None
        if event is not None:
            event.synchronize()
        return None if bool(torch.isfinite(answer)) else batches


def _single_samples(batches: Sequence[Batch]) -> Iterator[tuple[int, Batch]]:
    for batch in batches:
        for position, index in enumerate(batch["index"].tolist()):
            yield index, {key: value[position : position + 1] for key, value in batch.items()}


def all_finite(value: Tensor) -> bool:
    """Returns whether a tensor holds no NaN and no infinity; integers never do."""
    return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())


class Updater:
    """Makes updates of a training state.

    The gradient is that of the mean loss over the global batch: each micro-batch counts by its samples, the
    ranks' equal shares are averaged by DDP (of a loss that compares samples the predictions are gathered first, where
    trainer.across_ranks says so), and they are reduced once per update (`no_sync` around the
    forward and backward of all micro-batches but the last), then clipped.

    Whether a gradient is finite is the same on every rank, for it is their mean: all decide alike without asking each
    other. On a GPU that stops at the first bad one, the answer is read one update late, so that no update waits for
    the device; `settle` reads it before anything is kept.
    """

    def __init__(
        self, state: TrainingState, group: Group, config: TrainerConfig, precision: Precision, micro_batches: int
    ) -> None:
        self.state, self.config, self.precision, self.group = state, config, precision, group
        self.micro_batches = micro_batches
        self.parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
        forward: nn.Module = state.model
        own = state.task.updates_itself  # Of several backward passes, which DDP cannot tell from one.
        if group.world_size > 1 and not own:
            wrapper = DistributedDataParallel if config.compile else LightDDP
            forward = wrapper(
                forward,
                device_ids=[group.device] if group.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                # A static graph needs every backward to reduce, which accumulation does not.
                static_graph=micro_batches == 1,
            )
        # Compiled last: torch.compile then sees DDP's buckets and overlaps their reduction.
        self.forward = torch.compile(forward) if config.compile else forward
        self.ddp = forward if isinstance(forward, DistributedDataParallel) else None
        late = group.device.type == "cuda" and config.nan_policy == "stop" and not (own or state.scaler.is_enabled())
        self.finite_check = DeferredFiniteCheck() if late else None
        # Running statistics (BatchNorm) change in the forward pass: an update that is not made must leave them too.
        self.statistics = [buffer for buffer in state.model.buffers() if buffer.is_floating_point() and not late]
        # Two summands commute: with two ranks no layout rounds differently.
        self._buckets_settled = group.world_size <= 2
        self._reducing = False
        self._last_gradient = _LastGradient(self.parameters, self._wait_begins) if self.ddp is not None else None
        # Last: DDP waits for all ranks, so that here their clocks start together.
        self.clock = Clock(group.device)

    def close(self) -> None:
        """Lets go of DDP, which must not outlive the process group, and of the parameters."""
        if self._last_gradient is not None:
            self._last_gradient.close()
        del self.forward, self.ddp

    def update(self, batches: Sequence[Batch], learning_rate: float) -> UpdateMetrics:
        """Makes one update from this rank's micro-batches, already on the device.

        NonFiniteError: the gradient is not finite and the policy says so. The weights are then as before, but on a GPU,
        where the gradient was that of the update before; no checkpoint holds them.
        """
        if not self._buckets_settled:
            self._settle_buckets(batches[0])
        state, scaler, clock = self.state, self.state.scaler, self.clock
        samples = sum(len(batch["index"]) for batch in batches)
        before = [buffer.clone() for buffer in self.statistics]
        losses: list[Tensor] = []
        counts: dict[str, Tensor] = {}
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last or self.ddp is None else self.ddp.no_sync():
                clock.switch(Part.FORWARD)
                part, predictions, prepared = self._loss(batch)
                if len(batches) > 1:
                    part = part * (len(batch["index"]) / samples)
                clock.switch(Part.BACKWARD)
                self._reducing = last
                with self.group.parent.waiting("all_reduce of the gradients") if last else nullcontext():
                    self._backward(scaler.scale(part))
            losses.append(part.detach().to(self.precision.weights))
            with torch.no_grad():
                for name, value in state.task.counts(predictions, prepared).items():
                    counts[name] = counts[name] + value if name in counts else value
        clock.switch(Part.OPTIMIZER)
        self._reducing = False
        if self._last_gradient is not None:
            self._last_gradient.settle()
            if len(batches) > 1 and any(parameter.grad is None for parameter in self.parameters):
                raise self._unused()
        scaler.unscale_(state.optimizer)
        norm = get_total_norm([parameter.grad for parameter in self.parameters if parameter.grad is not None])
        skipped = self._why_not(norm, batches, before)
        if skipped is None:
            self._step(state.optimizer, self.parameters, norm, learning_rate)
        scaler.update()
        for parameter in self.parameters:
            parameter.grad = None
        return self._made(UpdateMetrics(sum(losses[1:], start=losses[0]), norm, skipped, counts))

    def _step(
        self, optimizer: torch.optim.Optimizer, parameters: Sequence[nn.Parameter], norm: Tensor, learning_rate: float
    ) -> None:
        """Makes one step of an optimiser, of gradients that are clipped first."""
        largest, limit = self.config.clip_gradient_norm, self.config.clip_gradient_value
        # Where the norm is on the host, a gradient that is short enough need not be multiplied by one.
        if largest is not None and (norm.is_cuda or norm.item() >= largest * (1 - 1e-5)):
            clip_grads_with_norm_(parameters, largest, norm)
        if limit is not None:
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            numbers = [torch.view_as_real(one) if one.is_complex() else one for one in gradients]
            foreach.clamp_min_(numbers, -limit)
            foreach.clamp_max_(numbers, limit)
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        self.state.scaler.step(optimizer)

    def _made(self, measured: UpdateMetrics) -> UpdateMetrics:
        """Counts an update, with the EMA weights where it was not skipped."""
        state, progress = self.state, self.state.progress
        if measured.skipped is None:
            progress.skipped_in_a_row = 0
            if state.ema is not None:
                state.ema.update(state.model, progress.updates)
        self.clock.switch(Part.OTHER)
        progress.updates += 1
        progress.samples += self.config.effective_batch_size
        return measured

    def _loss(self, batch: Batch) -> tuple[Tensor, Predictions, Batch]:
        """Returns the loss, with this rank's predictions and prepared batch."""
        task, group = self.state.task, self.group
        prepared = task.prepare(batch)
        with self.precision.autocast():
            predictions = self.forward(prepared)
        read: Any = predictions, prepared
        if self.config.across_ranks == "gather" and group.world_size > 1:
            read = (Together(own, len(batch["index"]), group) for own in read)
        return task.loss(*read), predictions, prepared

    def _backward(self, loss: Tensor) -> None:
        try:
            loss.backward()
        except RuntimeError as error:
            if self.ddp is None or "static_graph" not in str(error):
                raise
            raise RequestError(
                "gradients-of-some-updates",
                "the loss depends on a parameter in some updates only, which several ranks cannot share",
                seen="another set of parameters than in the first update",
                expected="the same parameters in the loss of every update",
                fix="devices=1      (or add 0 * weight.sum() of what is left out to a prediction)",
            ) from None

    def _unused(self) -> RequestError:
        """DDP finds out by itself that a parameter has no gradient only where every backward pass is reduced."""
        trained = ((name, value) for name, value in self.state.model.named_parameters() if value.requires_grad)
        unused = [name for name, value in trained if value.grad is None]
        return RequestError(
            "parameters-without-gradient",
            "several ranks that accumulate gradients cannot share parameters that get none", seen=first_of(unused, 3),
            expected="a gradient of each parameter that is trained",
            fix=f"'trainer.freeze=[{','.join(unused)}]'      (or trainer.max_batch_size=null)",
        )  # fmt: skip

    def _wait_begins(self) -> None:
        if self._reducing:
            self.clock.switch(Part.REDUCTION)

    def _settle_buckets(self, batch: Batch) -> None:
        """Lets DDP order its buckets before the first update of a start, by passes whose gradients are dropped.

        DDP lays out its buckets anew after its first backward passes, in the order in which gradients were ready.
        Where a gradient lies decides in which order the ranks' shares of it are added, so from three ranks on the
        first updates of a resumed run would otherwise round differently from those of the undisturbed run.
        """
        passes = 2 if self.micro_batches == 1 else 1  # Of a static graph, the first pass counts only which are used.
        with restored_afterwards(self.state.model, self.group.device):
            for _ in range(passes):
                loss, *_ = self._loss(batch)
                with self.group.parent.waiting("all_reduce of the gradients"):
                    self.state.scaler.scale(loss).backward()
                self.state.model.zero_grad()
        self._buckets_settled = True

    def settle(self) -> None:
        """Raises NonFiniteError where the last update was not of finite numbers; called before anything is kept."""
        if self.finite_check is not None and (bad := self.finite_check.settle()) is not None:
            raise NonFiniteError(self._describe(self.state.progress.updates, bad))
        # A step can overflow though its gradient was finite; no gradient comes after the last one to show it.
        if weights := [name for name, value in self.state.model.named_parameters() if not all_finite(value)]:
            raise NonFiniteError(
                f"the weights are not finite after update {self.state.progress.updates}\n"
                f"  seen      {first_of(weights, 3)}\n"
                "  expected  finite numbers: the gradient was finite, and the step made from it overflowed\n"
                "  fix       lower optimizer.learning_rate; the last checkpoint is as it was"
            )

    def _why_not(
        self, norm: Tensor, batches: Sequence[Batch], statistics: list[Tensor], *, again: bool = False
    ) -> str | None:
        """Returns None where the update may be made, else why it is skipped; raises where the run must stop.

        `again`: an earlier step of this update was skipped already.
        """
        progress = self.state.progress
        if self.finite_check is not None:
            if (bad := self.finite_check.at(norm, batches)) is not None:
                raise NonFiniteError(self._describe(progress.updates, bad))
            return None
        if isfinite(norm.item()):
            return None
        progress.skipped_in_a_row += not again
        for buffer, value in zip(self.statistics, statistics, strict=True):
            buffer.copy_(value)
        # fp16 overflows now and then by design: its scaler halves the scale and the next update fits.
        if self.state.scaler.is_enabled() and progress.skipped_in_a_row <= self.config.max_skipped_updates:
            return f"update {progress.updates + 1} overflowed in fp16 and is skipped; the loss scale is halved"
        described = self._describe(progress.updates + 1, batches)
        if self.config.nan_policy == "skip" and progress.skipped_in_a_row <= self.config.max_skipped_updates:
            return f"update {progress.updates + 1} is skipped: {described}"
        raise NonFiniteError(described)

    def _describe(self, update: int, batches: Sequence[Batch]) -> str:
        """Returns what is wrong, the same on every rank: whichever speaks first names the sample."""
        found = self.group.gather(self._causes(batches))
        gradients = ((name, parameter.grad) for name, parameter in self.state.model.named_parameters())
        parameters = [name for name, gradient in gradients if gradient is not None and not all_finite(gradient)]
        causes = [f"rank {rank}: {cause}" for rank, own in enumerate(found) for cause in own]
        seen, shown = first_of(causes, 4, "; "), first_of(parameters, 3)
        advice = "lower optimizer.learning_rate, or fix the samples"
        if self.config.nan_policy == "stop":
            advice += ", or trainer.nan_policy=skip to pass over single updates"
        in_a_row = max(1, self.state.progress.skipped_in_a_row)
        text = (
            f"the gradient of update {update} is not finite\n"
            f"  seen      {seen or 'every loss is finite: the backward pass overflowed'}"
            + (f"\n            in {shown}" if shown else "")
            + f"\n  expected  finite numbers ({in_a_row} in a row, nan_policy={self.config.nan_policy})\n"
            f"  fix       {advice}; the last checkpoint is as it was"
        )
        return str(self.group.from_first(text))

    @torch.no_grad()
    def _causes(self, batches: Sequence[Batch]) -> list[str]:
        """Looks for what brought a gradient that is not finite, on this rank; may cost a forward pass per sample.

        Samples are tried one at a time in evaluation mode, since layers that mix samples (BatchNorm) cannot train on
        one and would let one sample spoil the others' losses. Where that shows nothing, the micro-batches are tried as
        they were. What the passes change (running statistics, random numbers) is put back.
        Returns the first that there is of samples whose numbers, weights, samples whose loss and micro-batches whose
        loss are not finite.
        """
        task, model = self.state.task, self.state.model
        found = [
            f"sample {index}, {', '.join(keys)}"
            for index, alone in _single_samples(batches)
            if (keys := [key for key, value in alone.items() if not all_finite(value)])
        ]
        if found:
            return found
        weights = [name for name, value in model.named_parameters() if not all_finite(value)]
        if weights and self.finite_check is not None:  # The gradient is in them already, so either may be the cause.
            samples = ", ".join(str(index) for batch in batches for index in batch["index"].tolist())
            return [f"the weights, or one of samples {samples}: the update was made before this was seen"]
        if weights:
            return [f"the weights themselves, {first_of(weights, 1)}"]
        if task.updates_itself:
            return []

        def loss(batch: Batch) -> float:
            return float(loss_of(model, task, self.precision, batch))

        with restored_afterwards(model, self.group.device):
            with evaluation_mode(model):
                alike = () if task.compares_samples else _single_samples(batches)
                losses = [(index, loss(alone)) for index, alone in alike]
            found = [f"sample {index}, loss {value:.4g}" for index, value in losses if not isfinite(value)]
            for batch in () if found else batches:
                if not isfinite(together := loss(batch)):
                    samples = ", ".join(map(str, batch["index"].tolist()))
                    found.append(f"samples {samples} together, loss {together:.4g}")
        return found


class _LastGradient:
    """Tells when the last gradient of a backward pass is there: what follows is waiting for the reduction.

    Which parameter's it is the first pass shows; from then on only that one has a hook.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], tell: Callable[[], None]) -> None:
        self._tell, self._last = tell, cast(Tensor, parameters[-1])
        self._hooks = [one.register_post_accumulate_grad_hook(self._note) for one in parameters]
        self._settled = False

    def _note(self, parameter: Tensor) -> None:
        self._last = parameter

    def settle(self) -> None:
        """Keeps the hook of the parameter that came last; called after each backward pass, works once."""
        if not self._settled:
            self.close()
            self._hooks = [self._last.register_post_accumulate_grad_hook(lambda parameter: self._tell())]
            self._settled = True

    def close(self) -> None:
        """Takes its hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

"""One update: micro-batches give one gradient, which is the same on all ranks, and the optimiser makes one step."""

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
    """The gradient was not finite, and the policy is to stop."""


class DeferredFiniteCheck:
    """Checks whether a gradient was finite, one update late, when reading its norm no longer waits for the device."""

    def __init__(self) -> None:
        self._pending: tuple[Tensor, torch.cuda.Event | None, Sequence[Batch]] | None = None

    def at(self, norm: Tensor, batches: Sequence[Batch]) -> Sequence[Batch] | None:
        """Note this update's gradient norm; return the previous update's batches if its norm was not finite."""
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
        """Wait for the last noted norm; return that update's batches if it was not finite."""
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
    """Return whether a tensor contains neither NaN nor infinity; True for integers."""
    return not (value.is_floating_point() or value.is_complex()) or bool(torch.isfinite(value).all())


class Updater:
    """The updates of a training state.

    The gradient is that of the mean loss over the global batch: micro-batches are weighted by their samples, and DDP
    averages the ranks' equal shares, once per update (`no_sync` around the forward and backward of all micro-batches
    but the last). For a loss that compares samples, predictions are gathered first if trainer.across_ranks=gather.
    Then the gradient is clipped. As the mean over ranks it is finite on all ranks or on none, so that all decide alike
    without communication. On a GPU with nan_policy=stop the check is read one update late, so that no update waits for
    the device; `settle` reads it before anything is saved.
    """

    def __init__(
        self, state: TrainingState, group: Group, config: TrainerConfig, precision: Precision, micro_batches: int
    ) -> None:
        self.state, self.config, self.precision, self.group = state, config, precision, group
        self.micro_batches = micro_batches
        self.parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
        forward: nn.Module = state.model
        own = state.task.updates_itself  # Such updates have several backward passes, which DDP would treat as one.
        if group.world_size > 1 and not own:
            wrapper = DistributedDataParallel if config.compile else LightDDP
            forward = wrapper(
                forward,
                device_ids=[group.device] if group.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                # A static graph requires a reduction in every backward pass, which accumulation does not make.
                static_graph=micro_batches == 1,
            )
        # Compiled last: torch.compile then sees DDP's buckets and overlaps their reduction.
        self.forward = torch.compile(forward) if config.compile else forward
        self.ddp = forward if isinstance(forward, DistributedDataParallel) else None
        late = group.device.type == "cuda" and config.nan_policy == "stop" and not (own or state.scaler.is_enabled())
        self.finite_check = DeferredFiniteCheck() if late else None
        # Running statistics (BatchNorm) change in the forward pass: a skipped update must restore them.
        self.statistics = [buffer for buffer in state.model.buffers() if buffer.is_floating_point() and not late]
        # Addition of two numbers commutes: with two ranks every layout rounds alike.
        self._buckets_settled = group.world_size <= 2
        self._reducing = False
        self._last_gradient = _LastGradient(self.parameters, self._wait_begins) if self.ddp is not None else None
        # Created last, so that the ranks' clocks start together: DDP waits for all ranks.
        self.clock = Clock(group.device)

    def close(self) -> None:
        """Release DDP, which must not outlive the process group, and the hooks on parameters."""
        if self._last_gradient is not None:
            self._last_gradient.close()
        del self.forward, self.ddp

    def update(self, batches: Sequence[Batch], learning_rate: float) -> UpdateMetrics:
        """Make one update from this rank's micro-batches, already on the device.

        NonFiniteError: the gradient is not finite and the policy is to stop. The weights are then unchanged, except on
        a GPU, where the bad gradient is that of the previous update; no checkpoint contains the weights made from it.
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
        """Clip the gradients, then make one step of an optimiser."""
        largest, limit = self.config.clip_gradient_norm, self.config.clip_gradient_value
        # If the norm is on the host, a gradient that is short enough need not be multiplied by one.
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
        """Count an update; unless it was skipped, update the EMA weights."""
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
        """Return the loss, with this rank's predictions and prepared batch."""
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
            what = "the loss depends on a parameter in only some updates, which does not work with several ranks"
            fix = "devices=1      (or add 0 * weight.sum() of each unused parameter to a prediction)"
            raise RequestError("gradients-of-some-updates", what, fix=fix,
                               seen="another set of parameters than in the first update",
                               expected="the same parameters in the loss of every update") from None  # fmt: skip

    def _unused(self) -> RequestError:
        """Return the error for unused parameters, which DDP detects only if every backward pass is reduced."""
        trained = ((name, value) for name, value in self.state.model.named_parameters() if value.requires_grad)
        unused = [name for name, value in trained if value.grad is None]
        what = "a trained parameter gets no gradient, which does not work if several ranks accumulate gradients"
        return RequestError("parameters-without-gradient", what, seen=first_of(unused, 3),
                            expected="a gradient for each trained parameter",
                            fix=f"'trainer.freeze=[{','.join(unused)}]'      "
                            "(or trainer.max_batch_size=null)")  # fmt: skip

    def _wait_begins(self) -> None:
        if self._reducing:
            self.clock.switch(Part.REDUCTION)

    def _settle_buckets(self, batch: Batch) -> None:
        """Let DDP order its buckets before an attempt's first update, in trial passes whose gradients are dropped.

        DDP rearranges its buckets after its first backward passes, in the order in which gradients were ready. A
        gradient's place decides the order in which the ranks' shares are added, so with three or more ranks the first
        updates of a resumed run would otherwise round differently from those of an uninterrupted run.
        """
        passes = 2 if self.micro_batches == 1 else 1  # The first pass of a static graph only finds the used parameters.
        with restored_afterwards(self.state.model, self.group.device):
            for _ in range(passes):
                loss, *_ = self._loss(batch)
                with self.group.parent.waiting("all_reduce of the gradients"):
                    self.state.scaler.scale(loss).backward()
                self.state.model.zero_grad()
        self._buckets_settled = True

    def settle(self) -> None:
        """Raise NonFiniteError if the last gradient or the weights are not finite; called before anything is saved."""
        if self.finite_check is not None and (bad := self.finite_check.settle()) is not None:
            raise NonFiniteError(self._describe(self.state.progress.updates, bad))
        # A step can overflow though its gradient was finite, and after the last update no gradient would show it.
        if weights := [name for name, value in self.state.model.named_parameters() if not all_finite(value)]:
            raise NonFiniteError(
                f"the weights are not finite after update {self.state.progress.updates}\n"
                f"  seen      {first_of(weights, 3)}\n"
                "  expected  finite numbers: the gradient was finite, but the optimiser's step overflowed\n"
                "  fix       lower optimizer.learning_rate; the last checkpoint is unaffected"
            )

    def _why_not(
        self, norm: Tensor, batches: Sequence[Batch], statistics: list[Tensor], *, again: bool = False
    ) -> str | None:
        """Return why to skip an update, or None. again: a step of it was skipped. NonFiniteError: the run must stop."""
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
        """Return the message of the error, the same on every rank, so that each rank's error names the samples."""
        found = self.group.gather(self._causes(batches))
        gradients = ((name, parameter.grad) for name, parameter in self.state.model.named_parameters())
        parameters = [name for name, gradient in gradients if gradient is not None and not all_finite(gradient)]
        causes = [f"rank {rank}: {cause}" for rank, own in enumerate(found) for cause in own]
        seen, shown = first_of(causes, 4, "; "), first_of(parameters, 3)
        advice = "lower optimizer.learning_rate, or fix the samples"
        if self.config.nan_policy == "stop":
            advice += ", or trainer.nan_policy=skip to skip single updates"
        in_a_row = max(1, self.state.progress.skipped_in_a_row)
        text = (
            f"the gradient of update {update} is not finite\n"
            f"  seen      {seen or 'every loss is finite: the backward pass overflowed'}"
            + (f"\n            in {shown}" if shown else "")
            + f"\n  expected  finite numbers (without them: {in_a_row} in a row, nan_policy={self.config.nan_policy})\n"
            f"  fix       {advice}; the last checkpoint is unaffected"
        )
        return str(self.group.from_first(text))

    @torch.no_grad()
    def _causes(self, batches: Sequence[Batch]) -> list[str]:
        """Find the causes of a gradient that is not finite on this rank; this may take a forward pass for each sample.

        Look for values that are not finite in the samples, the weights, the loss of each sample, and the loss of each
        micro-batch; return the first of these kinds that is found. Losses of single samples are computed in evaluation
        mode, because layers that mix samples (BatchNorm) cannot train on one sample, and in a batch would let one
        sample spoil the other losses. Running statistics and random numbers are restored afterwards.
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
        if weights and self.finite_check is not None:  # The weights contain the bad step already.
            samples = ", ".join(str(index) for batch in batches for index in batch["index"].tolist())
            return [f"the weights, or one of samples {samples}: the update was made before the check"]
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
    """Calls `tell` at the last gradient of a backward pass; the time after it counts as waiting for the reduction.

    The first pass shows which parameter gets the last gradient; then only this parameter keeps its hook.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], tell: Callable[[], None]) -> None:
        self._tell, self._last = tell, cast(Tensor, parameters[-1])
        self._hooks = [one.register_post_accumulate_grad_hook(self._note) for one in parameters]
        self._settled = False

    def _note(self, parameter: Tensor) -> None:
        self._last = parameter

    def settle(self) -> None:
        """Keep only the hook of the parameter whose gradient came last. Only the first call has an effect."""
        if not self._settled:
            self.close()
            self._hooks = [self._last.register_post_accumulate_grad_hook(lambda parameter: self._tell())]
            self._settled = True

    def close(self) -> None:
        """Remove the hooks from the parameters."""
        for hook in self._hooks:
            hook.remove()

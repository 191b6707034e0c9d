"""One update: micro-batches → one gradient, agreed by all ranks → one step of the optimiser."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from noether.config.trainer import TrainerConfig
from noether.data.loader import Batch
from noether.distributed.group import Group
from noether.errors import NoetherError
from noether.training.precision import Precision
from noether.training.state import TrainingState


class NonFiniteError(NoetherError):
    """The gradient was not finite, and the policy says to stop."""


@dataclass(frozen=True)
class UpdateFigures:
    """What one update measured, still on the device: reading them is a synchronisation.

    loss: this rank's mean loss over its samples. gradient_norm: of the whole gradient, before clipping.
    """

    loss: Tensor
    gradient_norm: Tensor


class Updater:
    """Makes updates of a training state.

    The gradient is that of the mean loss over the global batch: each micro-batch counts by its samples, the
    ranks' equal shares are averaged by DDP, and they are reduced once per update (`no_sync` around the
    forward and backward of all micro-batches but the last), then clipped.
    """

    def __init__(
        self,
        state: TrainingState,
        group: Group,
        config: TrainerConfig,
        precision: Precision,
        micro_batches: int,
    ) -> None:
        self.state, self.config, self.precision, self.group = state, config, precision, group
        self.micro_batches = micro_batches
        self.parameters = [parameter for parameter in state.model.parameters() if parameter.requires_grad]
        forward: nn.Module = state.model
        if group.world_size > 1:
            forward = DistributedDataParallel(
                forward,
                device_ids=[group.device] if group.device.type == "cuda" else None,
                gradient_as_bucket_view=True,
                # A static graph needs every backward to reduce, which accumulation does not.
                static_graph=micro_batches == 1,
            )
        # Compiled last: torch.compile then sees DDP's buckets and overlaps their reduction.
        self.forward = torch.compile(forward) if config.compile else forward
        self.ddp = forward if isinstance(forward, DistributedDataParallel) else None

    def close(self) -> None:
        """Lets go of DDP, which must not outlive the process group."""
        del self.forward, self.ddp

    def update(self, batches: Sequence[Batch], learning_rate: float) -> UpdateFigures:
        """Makes one update from this rank's micro-batches, already on the device.

        Raises:
            NonFiniteError: where the gradient is not finite and the policy says so; the weights are as before.
        """
        state, scaler = self.state, self.state.scaler
        samples = sum(len(batch["index"]) for batch in batches)
        loss = torch.zeros((), device=self.group.device, dtype=self.precision.weights)
        for number, batch in enumerate(batches):
            last = number == len(batches) - 1
            with nullcontext() if last or self.ddp is None else self.ddp.no_sync():
                prepared = state.task.prepare(batch)
                with self.precision.autocast():
                    predictions = self.forward(prepared)
                part = state.task.loss(predictions, prepared) * (len(batch["index"]) / samples)
                with self.group.waiting("all_reduce of the gradients") if last else nullcontext():
                    scaler.scale(part).backward()
            loss += part.detach()
        scaler.unscale_(state.optimizer)
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        norm = get_total_norm(gradients)
        if self._may_step(norm, loss, batches):
            if self.config.clip_gradient_norm is not None:
                clip_grads_with_norm_(self.parameters, self.config.clip_gradient_norm, norm)
            for group in state.optimizer.param_groups:
                group["lr"] = learning_rate
            scaler.step(state.optimizer)
            if state.averages is not None:
                state.averages.update(state.model, state.progress.updates)
        scaler.update()
        state.optimizer.zero_grad()
        state.progress.updates += 1
        state.progress.samples += self.config.effective_batch_size
        return UpdateFigures(loss, norm)

    def _may_step(self, norm: Tensor, loss: Tensor, batches: Sequence[Batch]) -> bool:
        """Whether the gradient is finite. It is the same on every rank, so that all decide alike."""
        progress = self.state.progress
        if bool(torch.isfinite(norm)):
            progress.skipped_in_a_row = 0
            return True
        progress.skipped_in_a_row += 1
        # fp16 overflows now and then by design: its scaler halves the scale and the next update fits.
        skips = self.config.nan_policy == "skip" or self.state.scaler.is_enabled()
        if skips and progress.skipped_in_a_row <= self.config.max_skipped_updates:
            return False
        raise NonFiniteError(self._describe_non_finite(loss, batches))

    def _describe_non_finite(self, loss: Tensor, batches: Sequence[Batch]) -> str:
        bad = [
            name
            for name, parameter in self.state.model.named_parameters()
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
        ]
        samples = [int(index) for batch in batches for index in batch["index"]]
        shown = ", ".join(bad[:3]) + (f" and {len(bad) - 3} more" if len(bad) > 3 else "")
        advice = "lower optimizer.learning_rate"
        if self.config.nan_policy == "stop":
            advice += ", or trainer.nan_policy=skip to pass over single updates"
        return (
            f"the gradient of update {self.state.progress.updates + 1} is not finite\n"
            f"  seen      loss {float(loss):.4g} on rank {self.group.rank}, samples {samples}, in {shown}\n"
            f"  expected  finite numbers "
            f"({self.state.progress.skipped_in_a_row} in a row, nan_policy={self.config.nan_policy})\n"
            f"  fix       {advice}; the last checkpoint is as it was"
        )

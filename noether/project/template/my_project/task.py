"""The task: what is learned, and how good it is."""

from collections.abc import Iterable

from noether.runs.metrics import Metric
from noether.core.tasks.base import Task
from torch import Tensor


class Cooling(Task):
    """Mean square error of the later temperatures."""

    def loss(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        """Return the mean over the batch, in K²."""
        return (predictions["later"] - batch["later"]).square().mean()

    def metrics(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return metrics of each sample, (B,): `loss` in K², the others in K."""
        error = predictions["later"] - batch["later"]
        loss = error.square().mean(dim=1)
        return {"loss": loss, "rms_error_K": loss.sqrt(), "largest_error_K": error.abs().amax(dim=1)}

    def describe_metrics(self) -> Iterable[Metric]:
        """Say which unit they have and which way is better, for tables and pictures; without it they have none."""
        return [Metric(name, unit="K", better="lower") for name in ("rms_error_K", "largest_error_K")]

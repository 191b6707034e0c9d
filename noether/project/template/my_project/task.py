"""The task: the loss to minimise, and the metrics."""

from collections.abc import Iterable

from noether.runs.metrics import Metric
from noether.core.tasks.base import Task
from torch import Tensor


class Cooling(Task):
    """A task with the mean square error of the later temperatures as loss."""

    def loss(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        """Return the batch's mean square error, in K²."""
        return (predictions["later"] - batch["later"]).square().mean()

    def metrics(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the metrics of each sample, (B,): `loss` in K², the others in K."""
        error = predictions["later"] - batch["later"]
        loss = error.square().mean(dim=1)
        return {"loss": loss, "rms_error_K": loss.sqrt(), "largest_error_K": error.abs().amax(dim=1)}

    def describe_metrics(self) -> Iterable[Metric]:
        """Return the metrics' units and which direction is better, for tables and pictures (optional)."""
        return [Metric(name, unit="K", better="lower") for name in ("rms_error_K", "largest_error_K")]

"""The task: the loss to minimise, and the metrics."""

from collections.abc import Iterable

from noether.runs.metrics import Metric
from noether.core.tasks.base import Task
from torch import Tensor


class Cooling(Task):
    """The task to predict the later temperatures, with their mean square error as loss."""

    def loss(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> Tensor:
        """Return the mean square error of a batch, in K²."""
        return (predictions["later"] - batch["later"]).square().mean()

    def metrics(self, predictions: dict[str, Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return each metric as a tensor (B,), one value per sample: `loss` in K², the other metrics in K."""
        error = predictions["later"] - batch["later"]
        loss = error.square().mean(dim=1)
        return {"loss": loss, "rms_error_K": loss.sqrt(), "largest_error_K": error.abs().amax(dim=1)}

    def describe_metrics(self) -> Iterable[Metric]:
        """Return each metric's unit, and whether lower is better, for tables and pictures (optional)."""
        return [Metric(name, unit="K", better="lower") for name in ("rms_error_K", "largest_error_K")]

"""Classification: one class for each sample, trained by cross-entropy and scored by accuracy."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from noether.common.errors import RequestError
from noether.core.data.loader import Batch
from noether.core.tasks.base import Predictions, SampleMetrics, Task, check_predictions
from noether.runs.metrics import Metric


class ClassificationTask(Task):
    """Classification into one of several classes.

    The model predicts `logits` (B, classes); each sample contains its true class as an integer scalar.
    `ClassificationTaskConfig` describes the arguments.
    """

    report_parts = ("errors", "classes")

    def __init__(
        self, classes: int, label: str = "label", names: tuple[str, ...] = (), label_smoothing: float = 0.0
    ) -> None:
        self.classes, self.label, self.label_smoothing = classes, label, label_smoothing
        self.names = tuple(names) or tuple(str(number) for number in range(classes))

    @property
    def truths(self) -> tuple[str, ...]:
        """The key of the true class."""
        return (self.label,)

    @property
    def predicted(self) -> tuple[str, ...]:
        """The name of the model's prediction."""
        return ("logits",)

    def fit(self, samples: Iterable[Mapping[str, Tensor]]) -> None:
        """Check the training split's classes; on a GPU, an invalid class would raise a device-side assertion."""
        for sample in samples:
            if self.label in sample:
                self._check_labels(sample[self.label].reshape(-1))

    def loss(self, predictions: Predictions, batch: Batch) -> Tensor:
        """Return the mean cross-entropy in nats, a scalar."""
        logits, labels = self._checked(predictions, batch)
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def metrics(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Return each sample's cross-entropy, accuracy (1 or 0), predicted class and true class."""
        logits, labels = self._checked(predictions, batch)
        self._check_labels(labels)
        likeliest = logits.argmax(dim=1)
        return {
            "loss": F.cross_entropy(logits, labels, reduction="none"),
            "accuracy": (likeliest == labels).to(logits.dtype),
            "class/prediction": likeliest,
            "class/truth": labels,
        }

    def counts(self, predictions: Predictions, batch: Batch) -> SampleMetrics:
        """Return the number of correctly classified samples of a training batch."""
        logits, labels = self._checked(predictions, batch)
        return {"accuracy": (logits.argmax(dim=1) == labels).sum()}

    def describe_metrics(self) -> Iterable[Metric]:
        """Describe the accuracy as a share, and note that only the training loss uses smoothed labels."""
        yield Metric("accuracy", "%", better="higher", label="accuracy", headline=True)
        if self.label_smoothing:
            yield Metric("loss", better="lower", label="loss (smoothed labels in training)")

    def summarise(self, samples: Mapping[str, np.ndarray]) -> dict[str, float]:
        """Return the split's mean cross-entropy and accuracy."""
        return {name: float(np.mean(samples[name])) for name in ("loss", "accuracy")}

    def confusion(self, samples: Mapping[str, np.ndarray]) -> np.ndarray:
        """Return the confusion matrix (classes, classes): counts by true class (row) and predicted class (column)."""
        counts = np.zeros((self.classes, self.classes), int)
        np.add.at(counts, (samples["class/truth"].astype(int), samples["class/prediction"].astype(int)), 1)
        return counts

    def results(self, samples: Mapping[str, np.ndarray], metrics: Mapping[str, float]) -> dict[str, Any]:
        """Return the entries of result.json for the classes: their names and the confusion matrix."""
        return {"classes": {"names": list(self.names), "confusion": self.confusion(samples).tolist()}}

    def _checked(self, predictions: Predictions, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.label not in batch:
            raise RequestError("samples-without-label", f"the samples have no {self.label}",
                               seen=", ".join(key for key in batch if key != "index"),
                               expected=f"{self.label}: the true class, an integer scalar",
                               fix="task.label=KEY")  # fmt: skip
        labels = batch[self.label].reshape(-1)
        check_predictions(predictions, {"logits": (len(labels), self.classes)}, "task.classes")
        logits = predictions["logits"]
        # Under autocast, logits are in half precision, which is too coarse for a logarithm of a sum of exponentials.
        return logits.float() if logits.dtype in (torch.bfloat16, torch.float16) else logits, labels

    def _check_labels(self, labels: Tensor) -> None:
        if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < self.classes:
            raise RequestError("class-out-of-range", "a sample's class is not a class of the task",
                               seen=f"classes {int(labels.min())} to {int(labels.max())}",
                               expected=f"0 to {self.classes - 1}",
                               fix=f"task.classes={int(labels.max()) + 1}")  # fmt: skip

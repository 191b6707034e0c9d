"""Cross-entropy and accuracy equal torch's and values computed by hand; wrong models and labels are refused."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from noether.core.tasks.classification import ClassificationTask
from noether.runs.metrics import Metrics
from tests.refusal import refusal

LOGITS = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 3.0], [0.0, 1.0, 0.0], [0.5, 0.4, 0.0]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, 0, 1])
PREDICTIONS, BATCH = {"logits": LOGITS}, {"label": LABELS, "index": torch.arange(4)}


def metrics(task: ClassificationTask) -> dict[str, np.ndarray]:
    return {name: value.double().numpy() for name, value in task.metrics(PREDICTIONS, BATCH).items()}


def test_loss_is_the_mean_of_the_samples_losses() -> None:
    task = ClassificationTask(3)
    expected = -(LOGITS - LOGITS.exp().sum(dim=1, keepdim=True).log())[torch.arange(4), LABELS]
    assert torch.allclose(task.metrics(PREDICTIONS, BATCH)["loss"], expected, rtol=1e-14)
    assert task.loss(PREDICTIONS, BATCH).item() == pytest.approx(expected.mean().item(), rel=1e-14)


def test_accuracy_and_confusion_count_each_sample_once() -> None:
    task = ClassificationTask(3, names=("a", "b", "c"))
    loss = F.cross_entropy(LOGITS, LABELS).item()
    assert task.summarise(metrics(task)) == pytest.approx({"accuracy": 0.5, "loss": loss})
    assert task.confusion(metrics(task)).tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 1]]
    assert task.results(metrics(task), {})["classes"]["names"] == ["a", "b", "c"]


def test_label_smoothing_is_in_the_training_loss_alone() -> None:
    task = ClassificationTask(3, label_smoothing=0.1)
    assert task.loss(PREDICTIONS, BATCH) == F.cross_entropy(LOGITS, LABELS, label_smoothing=0.1)
    assert np.mean(metrics(task)["loss"]) == pytest.approx(F.cross_entropy(LOGITS, LABELS).item())
    assert Metrics.of(*task.describe_metrics())["loss"].title == "loss (smoothed labels in training)"
    assert "loss" not in Metrics.of(*ClassificationTask(3).describe_metrics())


def test_logits_in_half_precision_are_scored_in_single_and_right_samples_counted() -> None:
    assert ClassificationTask(3).loss({"logits": LOGITS.bfloat16()}, BATCH).dtype == torch.float32
    assert ClassificationTask(3).counts(PREDICTIONS, BATCH)["accuracy"] == 2


WRONG = {
    "no-logits": ({"classes": LOGITS}, BATCH, "the model predicts no logits"),
    "no-dict": (LOGITS, BATCH, "the model does not return a dict"),
    "other-number-of-classes": ({"logits": LOGITS[:, :2]}, BATCH, "the wrong shape"),
    "no-label": (PREDICTIONS, {"index": torch.arange(4)}, "the samples have no label"),
    "label-out-of-range": (PREDICTIONS, {"label": LABELS + 1}, "fix       task.classes=4"),
}


@pytest.mark.parametrize(("predictions", "batch", "words"), WRONG.values(), ids=WRONG.keys())
def test_what_does_not_fit_is_refused_in_words(predictions, batch, words: str) -> None:
    with refusal(words=words):
        ClassificationTask(3).metrics(predictions, batch)


def test_a_wrong_label_of_the_training_split_is_found_before_training() -> None:
    with refusal(words="classes 3 to 3"):
        ClassificationTask(3).fit([{"label": torch.tensor(1)}, {"label": torch.tensor(3)}])

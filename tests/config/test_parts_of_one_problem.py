"""A data set, a model and a task that cannot work together are refused before anything starts."""

from pathlib import Path

import pytest

from noether.config.compose import load_config
from noether.errors import RequestError

TOGETHER = {
    "all-of-the-ellipsoid": (),
    "all-of-the-digits": ("+experiment/mnist=convnet",),
}
APART = {
    "digits-without-task-and-model": ("dataset=mnist",),
    "digits-for-upt": ("dataset=mnist", "task=classification"),
    "cars-for-the-convolutional-net": ("model=convnet", "task=classification"),
}


@pytest.mark.parametrize("overrides", TOGETHER.values(), ids=TOGETHER.keys())
def test_parts_that_belong_together(overrides: tuple[str, ...]) -> None:
    assert load_config(overrides).task.kind in ("fields", "classification")


def test_an_own_model_may_do_anything(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "defaults: [/dataset: mnist, /task: classification, /optimizer: adamw, /schedule: cosine, _self_]\n"
        "model: {kind: mine.Model}\n"
        "trainer: {effective_batch_size: 8, max_epochs: 1}\n"
    )
    assert load_config(hp=file).model.kind == "mine.Model"


@pytest.mark.parametrize("overrides", APART.values(), ids=APART.keys())
def test_parts_that_do_not(overrides: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as refusal:
        load_config(overrides)
    assert "do not fit together" in str(refusal.value)
    assert "dataset.kind=" in str(refusal.value)

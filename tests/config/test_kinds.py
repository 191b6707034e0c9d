"""A kind typed anew drops the options of the old one, and must fit the others."""

from pathlib import Path

import pytest

from noether.common.errors import RequestError
from noether.config.compose import load_config

NEW_KINDS = {
    "model": (["model.kind=my.Model", "model.width=3"], lambda c: c.model.options(), {"width": 3}),
    "model-with-its-group": (["model=transformer", "model.kind=my.Model"], lambda c: c.model.options(), {}),
    "dataset": (
        ["dataset.kind=my.Data", "dataset.points_per_update.surface=5"],
        lambda c: (c.dataset.options(), c.dataset.points_per_update),
        ({}, {"surface": 5}),
    ),
    "task": (["task.kind=my.Task"], lambda c: c.task.options(), {}),
    "known": (["model.kind=transformer"], lambda c: (c.model.dim, c.model.depth), (192, 12)),
    "optimizer": (["optimizer.kind=sgd"], lambda c: c.optimizer.kind, "sgd"),
}


@pytest.mark.parametrize(("overrides", "read", "expected"), NEW_KINDS.values(), ids=NEW_KINDS)
def test_a_new_kind_drops_the_options_of_the_old_one(overrides, read, expected) -> None:
    options = read(load_config(overrides))
    if isinstance(options, dict):
        options = {name: value for name, value in options.items() if value is not None}
    assert options == expected


APART = {
    "digits-without-task-and-model": ("dataset=mnist",),
    "cars-for-the-convolutional-net": ("model=convnet", "task=classification"),
}


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

"""If the batch size and the length are `auto`, they are chosen from the prepared cases."""

import json

import pytest

from noether.config.compose import load_config, settings_with_origins
from noether.launch.plan import plan_run
from noether.physics.cases.recipe import choose_recipe


def prepared(folder, training: int, validation: int = 0, sets: tuple[str, ...] = ("volume",)) -> str:
    """Write a prepared folder that contains only `dataset.json`; return the setting that names the folder."""
    names = [f"case_{number}" for number in range(training + validation)]
    splits = {"train": names[:training], "validation": names[training:], "test": []}
    about = {"splits": splits, "fields": {f"{name}_p": {"set": name} for name in sets}}
    (folder / "dataset.json").write_text(json.dumps(about))
    return f"dataset_root={folder}"


@pytest.mark.parametrize(
    ("cases", "words", "expected"),
    [
        pytest.param({"training": 64, "validation": 8}, [], (16, 9400), id="one-set"),
        pytest.param({"training": 64, "validation": 8, "sets": ("a", "b")}, [], (16, 5800), id="two-sets-cost-more"),
        pytest.param({"training": 13, "validation": 2}, [], (8, 13600), id="fewer-cases-than-a-batch"),
        pytest.param({"training": 9}, [], (8, 13600), id="one-of-nine-is-held-out"),
        pytest.param({"training": 1}, [], (1, 22600), id="a-single-case"),
        pytest.param({"training": 64}, ["trainer.effective_batch_size=4"], (4, 17600), id="batch-typed"),
        pytest.param({"training": 64}, ["trainer.max_updates=7"], (16, 7), id="length-typed"),
        pytest.param({"training": 64, "validation": 8}, ["model=upt_small"], (8, 1000), id="another-model"),
        pytest.param({"training": 800, "validation": 8}, ["model=upt_small"], (8, 10000), id="of-more-cases"),
    ],
)
def test_batch_and_length_follow_from_the_cases(cases, words, expected, tmp_path) -> None:
    trainer = load_config(["dataset=cases", prepared(tmp_path, **cases), *words]).trainer
    assert (trainer.effective_batch_size, trainer.max_updates) == expected


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"splits": 3}', '{"splits": {"train": 3}}'])
def test_what_is_no_data_set_is_left_to_its_check(content, tmp_path) -> None:
    (tmp_path / "dataset.json").write_text(content)
    trainer = load_config(["dataset=cases", f"dataset_root={tmp_path}"]).trainer
    usual = choose_recipe(None, "mlp")
    assert (trainer.effective_batch_size, trainer.max_updates) == (usual.effective_batch_size, usual.max_updates)


def test_settings_say_where_they_come_from(tmp_path) -> None:
    origins = {one.name: one.origin for one in settings_with_origins(["dataset=cases", prepared(tmp_path, 64)])}
    assert "auto" in origins["trainer.max_updates"]
    assert "58 training cases" in origins["trainer.max_updates"]
    assert "auto" not in origins["trainer.precision"]


def test_the_plan_says_why_the_model_has_its_size(tmp_path) -> None:
    words = ["dataset=cases", prepared(tmp_path, 64, 8), "accelerator=cpu", "devices=1"]
    reasons = plan_run(load_config(words)).placement.reasons
    assert "9,400 updates of 16 cases" in reasons["length"]
    assert "128 wide" in reasons["model"]
    assert "model" not in plan_run(load_config([*words, "model.dim=64"])).placement.reasons


def test_of_other_data_nothing_is_known() -> None:
    origins = {one.name: one.origin for one in settings_with_origins(["trainer=cases"])}
    assert "as for 100" in origins["trainer.max_updates"]

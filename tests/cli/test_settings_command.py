"""`noether settings` shows what a run would be, and `noether help` one setting."""

import json
from pathlib import Path

import pytest

from noether.cli.entry import dispatch
from noether.config.compose import DEFAULT, TYPED, load_config, settings_with_origins
from noether.config.section import flat


def test_each_setting_has_its_value_and_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("seed: 3\ntrainer: {log_every: 7 updates}\n")
    words = ["model=upt", "trainer.max_updates=9", "+experiment/ellipsoid=quick"]
    found = {setting.name: setting for setting in settings_with_origins(words, file)}
    assert {name: one.value for name, one in found.items()} == dict(
        flat(load_config(words, file).model_dump(mode="json"))
    )
    origins = {name: one.origin for name, one in found.items()}
    assert origins["trainer.max_updates"] == TYPED
    assert origins["seed"] == origins["trainer.log_every"] == str(file)
    assert origins["model.dim"] == "configs/model/upt.yaml"
    assert origins["trainer.evaluate_every"] == "configs/experiment/ellipsoid/quick.yaml"
    assert origins["trainer.precision"] == "configs/trainer/default.yaml"
    assert origins["trainer.tf32"] == origins["master_port"] == DEFAULT


def test_the_lines_can_be_typed_and_the_json_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["settings", "seed=5"]) == 0
    lines = [line.split("   ")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert "seed=5" in lines
    assert "'schedule.warmup=5 %'" in lines
    assert dispatch(["settings", "seed=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == {"value": 5, "origin": "command line"}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("trainer.max_epochs", "whole number or null, default null"),
        ("accelerator", "auto | gpu | cpu | mps, default auto"),
        ("schedule.warmup", "length or null, default null"),
        ("optimizer.betas", "list of numbers, default [0.9,0.999]"),
    ],
)
def test_the_help_of_one_setting_has_its_type_and_default(name: str, says: str, capsys) -> None:
    assert dispatch(["help", name]) == 0
    first, _, *uses = capsys.readouterr().out.splitlines()
    assert first == f"{name}: {says}"
    assert [line for line in uses if "configs/" in line] == uses
    assert bool(uses) == (name in ("trainer.max_epochs", "schedule.warmup")), "what a file sets, and the default"

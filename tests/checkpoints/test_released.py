"""The checkpoint and the export of each released version load and predict the same; the checkpoint trains on."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from checkpoints.make_released import HERE, inputs
from conftest import REPOSITORY

from noether.checkpoints.state import PROGRESS
from noether.physics.export.exported_model import load_exported
from noether.runs.records import read_record

VERSIONS = sorted(path.name for path in HERE.iterdir() if path.is_dir())


def test_each_version_of_the_changelog_has_its_fixture() -> None:
    """If it is missing, run `python -m tests.checkpoints.make_released`."""
    listed = re.findall(r"^## (\d+\.\d+\.\d+)", (REPOSITORY / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert set(listed) <= set(VERSIONS)


@pytest.mark.parametrize("program", [True, False], ids=["program", "weights"])
@pytest.mark.parametrize("version", VERSIONS)
def test_an_export_predicts_what_it_did(version: str, program: bool) -> None:
    export = HERE / version / "export"
    predicted = json.loads((HERE / version / "predicted.json").read_text())
    exported = load_exported(export, program=program, trust=program)
    found = exported(inputs(exported))
    assert found.keys() == predicted.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, torch.tensor(predicted[name]), rtol=1e-4, atol=1e-4)


def test_a_counter_is_read_by_its_first_name_too() -> None:
    assert PROGRESS.validate_python({"evaluations_in_vain": 3}).evaluations_without_improvement == 3


@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_is_evaluated_and_goes_on(version: str, noether, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(HERE / version / "run", run)
    assert noether("checkpoints", str(run), "--verify").code == 0
    done = noether("evaluate", str(run), "--json", code=0)
    old = read_record(HERE / version / "run" / "result.json")["metrics"]
    before = {name: value for name, value in old.items() if value is not None}
    after = json.loads(done.out)["metrics"]
    assert {name: after[name] for name in before} == pytest.approx(before, rel=1e-4)
    settings = ("--hp", str(run / "config.yaml"), f"resume={run}", f"output_path={tmp_path}")
    noether("train", *settings, "trainer.max_updates=3", "accept_changes=[all]", code=0)
    assert sorted(path.name for path in (run / "checkpoints").glob("update-*"))[-1] == "update-000000003"

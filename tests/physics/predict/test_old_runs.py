"""Runs of checkpoint format 2, whose norms have the eps 1e-5: they evaluate to their old metrics, go on and predict."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from noether.runs.results import read_result

OLD_RUNS = Path(__file__).with_name("old_runs")
KINDS = sorted(path.name for path in OLD_RUNS.iterdir())


@pytest.fixture
def old_run(request, tmp_path: Path) -> Path:
    shutil.copytree(OLD_RUNS / request.param, tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("old_run", KINDS, indirect=True)
def test_an_old_run_evaluates_to_its_old_metrics(old_run: Path, noether) -> None:
    before = read_result(old_run / "result.json")
    done = noether("evaluate", str(old_run), "--json")
    assert done.code == 0, done.err
    after = json.loads((old_run / "result.json").read_text())
    for name, value in before["metrics"].items():
        assert after["metrics"][name] == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("old_run", ["upt", "transolver"], indirect=True)
def test_an_old_run_goes_on(old_run: Path, noether) -> None:
    done = noether("train", f"resume={old_run}", "trainer.max_updates=4")
    assert done.code == 0, done.err
    assert json.loads((old_run / "result.json").read_text())["updates"] == 4
    # What it has written since is of today's format, and its norms are as they were.
    again = noether("evaluate", str(old_run), "--json")
    assert json.loads(again.out)["metrics"]["loss"] == pytest.approx(
        json.loads((old_run / "result.json").read_text())["metrics"]["loss"], rel=1e-6
    )


@pytest.mark.parametrize("old_run", ["ab_upt"], indirect=True)
def test_an_old_run_predicts(old_run: Path, noether, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    np.save(tmp_path / "car.npy", rng.uniform([-0.8, 0, -2], [0.8, 1.2, 2], (64, 3)))
    np.save(tmp_path / "air.npy", rng.uniform([-1, 1.5, -3], [1, 3, 3], (50, 3)))
    done = noether(
        "predict", str(old_run), "--mesh", str(tmp_path / "car.npy"), "--volume", str(tmp_path / "air.npy"),
        "--out", str(tmp_path / "p.vtu"),
    )  # fmt: skip
    assert done.code == 0, done.err
    assert "volume_velocity_prediction" in done.out

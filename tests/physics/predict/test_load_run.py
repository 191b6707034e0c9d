"""`noether.load_run` gives Python code a trained run; its notebook works."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

import noether as package
from noether.common.errors import RequestError
from tests.notebooks import run_notebook
from tests.refusal import refusal

SMALL_RUNS = Path(__file__).with_name("small_runs")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    shutil.copytree(SMALL_RUNS / "upt", tmp_path / "run")
    row = {"kind": "training", "update": 1, "loss": 2.0, "samples_per_second": 1.0}
    (tmp_path / "run" / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path / "run"


def test_a_run_predicts_and_has_its_metrics_and_history(run_folder: Path) -> None:
    run = package.load_run(run_folder)
    rng = np.random.default_rng(0)
    points, air = rng.uniform([-0.8, 0, -2], [0.8, 1.2, 2], (64, 3)), rng.uniform([-1, 1.5, -3], [1, 3, 3], (50, 3))
    found = run.predict(points, volume=air)
    assert found["surface_pressure"].shape == (64,)
    assert found["volume_velocity"].shape == (50, 3)
    in_chunks = run.predict(points, volume=air, chunk_size=7)
    np.testing.assert_allclose(in_chunks["surface_pressure"], found["surface_pressure"])
    released = json.loads((run_folder / "result.json").read_text())["metrics"]
    assert released.items() <= run.metrics.items()
    assert [row["update"] for row in run.history] == [1]
    assert {type(value) for value in found["scalars"].values()} <= {float}
    assert (found["units"]["surface_pressure"], "lift_coefficient" in found["units"]) == ("Pa", False)
    assert (run.path, str(run_folder) in repr(run)) == (run_folder, True)
    assert run.model.state_dict().keys() == run.trained.model.state_dict().keys()
    with refusal("parameter-not-read") as refused:
        run.predict(points, wind_speed=32)
    assert refused.value.expected == "one of reference_area"
    with refusal("shape-size"):  # The mesh is in mm. `noether predict` prints the same message.
        run.predict(1000 * points)
    with refusal("shape-size"):
        run.sensitivity(1000 * points, "mean surface_pressure")


def test_what_is_not_there_is_refused(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_folder / "result.json").write_text("{")
    with refusal("run-not-evaluated"):
        _ = package.load_run(run_folder).metrics
    (run_folder / "result.json").unlink()
    with refusal("run-not-evaluated"):
        _ = package.load_run(run_folder).metrics
    with pytest.raises(RequestError):
        package.load_run(run_folder.parent / "nothing")
    monkeypatch.setitem(sys.modules, "pandas", None)
    with refusal("no-pandas", fix="pip install pandas"):
        package.load_run(run_folder).history_frame()


def test_the_notebook_runs_from_its_first_cell_to_its_last(run_folder: Path, monkeypatch) -> None:
    monkeypatch.setenv("NOETHER_RUN", str(run_folder))
    found = run_notebook("a_run_from_python.ipynb")["found"]
    assert set(found["scalars"]) == {"lift_coefficient", "yawing_moment_coefficient"}

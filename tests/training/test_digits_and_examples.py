"""The trainer fits more than one kind of problem: digits are classified, and the example project trains unchanged."""

import json

import numpy as np
import pytest
from conftest import REPOSITORY

from noether.core.models.build import build_model, count_parameters
from noether.physics.predict.vtk_output import write_fields


def test_the_convolutional_net_has_its_size() -> None:
    assert count_parameters(build_model("convnet")) == 1_199_882


@pytest.mark.slow
@pytest.mark.parametrize(("epochs", "accuracy"), [(4, 0.92), pytest.param(10, 0.95, marks=pytest.mark.nightly)])
def test_digits_are_read_by_two_ranks(epochs, accuracy, noether, tmp_path) -> None:
    """Each of 1,000 unseen digits is scored once, on any number of ranks. The experiment's default is ten epochs."""
    words = ("accelerator=cpu", "devices=2", f"trainer.max_epochs={epochs}", f"output_path={tmp_path}", "run_id=digits")
    noether("train", "+experiment/mnist=convnet", *words, code=0)
    result = json.loads((tmp_path / "digits" / "result.json").read_text())
    assert result["metrics"]["accuracy"] > accuracy
    confusion = result["classes"]["confusion"]
    assert [sum(row) for row in confusion] == [100] * 10
    assert sum(confusion[i][i] for i in range(10)) == round(1000 * result["metrics"]["accuracy"])
    plan = json.loads((tmp_path / "digits" / "plan.json").read_text())
    assert plan["report_parts"] == result["report_parts"] == ["errors", "classes"]
    report = (tmp_path / "digits" / "report.html").read_text()
    assert "On 1,000 unseen samples" in report
    assert f"{100 * result['metrics']['accuracy']:.2f}\u202f%" in report
    assert 'class="confusion"' in report
    again = noether("evaluate", str(tmp_path / "digits"), "--json", code=0)
    assert json.loads(again.out)["metrics"] == pytest.approx(result["metrics"], rel=1e-5)
    # The values on this mesh could be mistaken for true values.
    points, values = np.eye(3), {"pressure": np.arange(3.0)}
    write_fields(tmp_path / "car.vtu", points, np.array([[0, 1, 2]]), values)
    mesh, out = str(tmp_path / "car.vtu"), str(tmp_path / "out")
    for verb, *words in (["predict", "--mesh", mesh], ["export", out], ["evaluate", "--vtk"]):
        refused = noether(verb, str(tmp_path / "digits"), *words)
        assert (refused.code, "Traceback" in refused.err) == (2, False), refused.err
        assert "task.kind=classification" in refused.err


@pytest.mark.slow
def test_the_example_project_trains_as_it_stands(noether, tmp_path) -> None:
    lines = (REPOSITORY / "examples" / "pendulum.py").read_text().splitlines()
    assert len(lines) < 100
    noether("train", "--hp", "examples/pendulum.yaml", f"output_path={tmp_path}", "run_id=pendulum", code=0)
    result = json.loads((tmp_path / "pendulum" / "result.json").read_text())
    # Angles vary by about one radian, which would be the error of a pendulum that stays at 0.
    assert result["metrics"]["loss"] < 0.02

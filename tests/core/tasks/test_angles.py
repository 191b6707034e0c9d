"""A periodic angle is learned as its cosine and sine; predictions and errors are converted back to angles."""

import json
from pathlib import Path

import numpy as np
import pytest
import pyvista
import torch
from simulated_cases import drafted, prepare

from noether.config.section import FieldConfig
from noether.core.tasks.angles import as_angle, as_nearest, as_pair, in_units
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.vocabulary import period_of
from noether.physics.export.exported_model import load_exported
from noether.physics.predict.shape_input import FileAxes
from noether.physics.uncertainty.ensemble import Prediction

NAMES = {
    "degrees": ("phase_deg", -179.9, 179.8, ("deg", (-180, 180))),
    "turns": ("Phase angle [°]", 0.1, 359.7, ("deg", (0, 360))),
    "radians": ("arg(E)", -3.14, 3.1415, ("rad", (-np.pi, np.pi))),
    "a-slope": ("slope_angle", 0.0, 90.0, None),
    "half-a-turn": ("contact_angle", 0.0, 180.0, None),
    "unwrapped": ("phase", -720.0, 540.0, None),
    "no-name-of-an-angle": ("pressure", -180.0, 180.0, None),
    "a-part-of-a-word": ("triangles", -180.0, 180.0, None),
}


@pytest.mark.parametrize(("name", "low", "high", "expected"), NAMES.values(), ids=NAMES)
def test_an_angle_that_jumps_is_known_by_its_name_and_range(name, low, high, expected) -> None:
    assert period_of(name, low, high) == (None if expected is None else (expected[0], pytest.approx(expected[1])))


@pytest.mark.parametrize("period", [(-180.0, 180.0), (0.0, 360.0), (-np.pi, np.pi)])
def test_an_angle_comes_back_and_its_error_is_the_shorter_way_round(period) -> None:
    length = period[1] - period[0]
    angles = np.random.default_rng(0).uniform(*period, 50)
    np.testing.assert_allclose(as_angle(3 * as_pair(angles, period), period), angles, atol=1e-9)
    near = angles + 0.01 * length
    pairs = [torch.from_numpy(as_pair(own, period)) for own in (near, angles)]
    found, truth = in_units(FieldConfig(points="volume_points", period=period), *pairs)
    np.testing.assert_allclose((found - truth)[:, 0], 0.01 * length, atol=1e-9)
    np.testing.assert_allclose(as_nearest(as_angle(pairs[0].numpy(), period), angles, period), near, atol=1e-9)


def test_a_spread_of_cosine_and_sine_is_one_of_the_angle() -> None:
    pairs = as_pair(np.array([179.5, 10.0]), (-180, 180))
    off = as_pair(np.array([181.5, 12.0]), (-180, 180)) - pairs
    found = Prediction({"phase": pairs}, {}, {"phase": off / 2}, {"phase": off}, None)
    # The true angle of -179 shifts the first prediction and its interval by 360 degrees.
    mean = as_nearest(np.array([179.5, 10.0]), np.array([-179.0, 11.0]), (-180, 180))
    own = found.arrays("phase", mean, FileAxes.of({}, "files", {"phase": (-180.0, 180.0)}))
    assert own["phase_spread"] == pytest.approx([1, 1], rel=1e-3)
    assert own["phase_low"] == pytest.approx([-182.5, 8], rel=1e-3)
    assert own["phase_high"] == pytest.approx([-178.5, 12], rel=1e-3)


@pytest.mark.slow
def test_a_phase_is_trained_predicted_and_exported_as_an_angle(noether, tmp_path: Path) -> None:
    rng, root, out = np.random.default_rng(0), tmp_path / "in", tmp_path / "out"
    root.mkdir()
    for number in range(8):
        points = rng.uniform(0, 1, (300, 3))
        cloud = pyvista.PointSet(points)
        cloud["phase_deg"] = (360 * (1 + 0.1 * number) * points[:, 0]) % 360
        cloud.cast_to_unstructured_grid().save(root / f"wave_{number}.vtu")
        (root / f"wave_{number}.json").write_text(json.dumps({"frequency_Hz": 1 + 0.1 * number}))
    text, _ = drafted(root)
    assert "period: [0, 360]" in text
    prepare(root, out, text)
    about = json.loads((out / "dataset.json").read_text())["fields"]["points_phase"]
    assert (about["components"], about["unit"], about["period"]) == (2, "deg", [0, 360])
    assert open_cases(out)[0].about()["fields"]["points_phase"]["period"] == (0, 360)
    run = tmp_path / "runs" / "own"
    trained = noether(
        "train", "dataset=cases", f"dataset_root={out}", "accelerator=cpu", "devices=1", "trainer.max_updates=3",
        f"output_path={run.parent}", "run_id=own",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    metrics = json.loads((run / "result.json").read_text())["metrics"]
    assert metrics["points_phase/max"] <= 180
    assert not any("cos" in name or "points_phase/0" in name for name in metrics)
    mesh, written = root / "wave_3.vtu", tmp_path / "own.vtu"
    noether("predict", str(run), "--mesh", str(mesh), "--set", "frequency=1.3", "--out", str(written), code=0)
    found = pyvista.read(written)["points_phase_prediction"]
    assert found.shape == (300,)
    assert 0 <= found.min() < found.max() < 360
    noether("export", str(run), str(tmp_path / "export"), code=0)
    points = np.asarray(pyvista.read(mesh).points, np.float32)
    again = load_exported(tmp_path / "export")({"points_points": points, "frequency": np.array([1.3], np.float32)})
    away = again["points_phase"][:, 0].numpy() - found
    assert np.abs(away - 360 * np.round(away / 360)).max() < 0.1

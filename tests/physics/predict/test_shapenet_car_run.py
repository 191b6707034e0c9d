"""The documented command on a folder of the real format: it trains, reports both fields, and can be evaluated again."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import pyvista
from shapenet_car_files import prepare_cars

pytest_plugins = ("shapenet_car_runs",)


@pytest.mark.slow
def test_the_documented_command_trains_and_reports_both_fields(shapenet_run) -> None:
    result = json.loads((shapenet_run.folder / "result.json").read_text())
    assert set(result["fields"]) == {"surface_pressure", "volume_velocity"}
    metrics, velocity = result["metrics"], "volume_velocity"
    assert 0 < metrics["surface_pressure/pooled_relative_l2"] < 1.5
    mse = np.mean([metrics[f"{velocity}/{component}/mse"] for component in "xyz"])
    assert metrics[f"{velocity}/mse"] == pytest.approx(mse, rel=1e-6)
    assert metrics[f"{velocity}/max"] == pytest.approx(max(metrics[f"{velocity}/{one}/max"] for one in "xyz"))
    assert set(result["baselines"]) == {"mean_field", "nearest_shape"}
    drag = result["scalars"]["drag_coefficient"]
    assert drag["dynamic_pressure"] == 245.0
    assert drag["density"] == 1.225
    assert drag["speed"] == pytest.approx(20.0)
    assert "(first: 1.72 m²)" in drag["reference_area"]
    assert 0 < metrics["drag_coefficient/floor_mae"] < 1e-3  # the sum over points against the integral over the faces
    assert "pitching_moment_coefficient" in result["scalars"]
    assert "the true field integrated on these points" in shapenet_run.out
    assert (shapenet_run.folder / "report.html").is_file()


@pytest.mark.slow
def test_a_split_is_evaluated_again_with_files_for_paraview(shapenet_run, noether) -> None:
    done = noether("evaluate", str(shapenet_run.folder), "--split", "train", "--vtk", "--json")
    assert done.code == 0, done.err
    result = json.loads(done.out)
    for path in map(Path, result["files"]):
        mesh = pyvista.read(path)
        field = "surface_pressure" if "_surface" in path.name else "volume_velocity"
        assert {field, f"{field}_prediction", f"{field}_error"} == set(mesh.point_data.keys())
        error = mesh.point_data[f"{field}_prediction"] - mesh.point_data[field]
        assert np.allclose(error, mesh.point_data[f"{field}_error"], atol=1e-5)
        assert set(mesh.celltypes) == {pyvista.CellType.QUAD if "_surface" in path.name else pyvista.CellType.VERTEX}
    worst = next(path for path in result["files"] if Path(path).name.startswith("worst") and "_surface" in path)
    mesh = pyvista.read(worst)
    relative = np.linalg.norm(mesh.point_data["surface_pressure_error"]) / np.linalg.norm(
        mesh.point_data["surface_pressure"]
    )
    assert relative >= result["metrics"]["surface_pressure/relative_l2"] - 1e-6


@pytest.mark.slow
def test_forces_that_cannot_be_had_and_a_damaged_car_are_said_in_words(
    shapenet_run, prepared, published, noether, tmp_path
) -> None:
    root = tmp_path / "published"
    prepare_cars(published, root)
    config = tmp_path / "run" / "config.yaml"
    shutil.copytree(shapenet_run.folder, tmp_path / "run")
    config.write_text(config.read_text().replace(str(prepared), str(root)))
    done = noether("evaluate", str(tmp_path / "run"))
    assert done.code == 0, done.err
    assert "drag coefficient: it cannot be integrated: the samples hold no surface_area" in done.out
    broken = next((root / "cases").glob("param1-*")) / "volume.safetensors"
    broken.write_bytes(broken.read_bytes()[:-4] + b"xxxx")
    done = noether("train", "--hp", str(config), f"output_path={tmp_path}/runs")
    assert (done.code, "Traceback" in done.err) == (2, False)
    assert str(broken) in done.err

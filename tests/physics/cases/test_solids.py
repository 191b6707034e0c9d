"""Data that are no car: a solid known by its own nodes, sets of any names, the result on the user's own mesh."""

import json
from pathlib import Path

import numpy as np
import pytest
import pyvista
from simulated_cases import prepare

from noether.core.data.points import shape_key

MAP = """
length: mm
parameters:
  load: {file: "{case}/numbers.json", unit: N}
sets:
  block:
    file: "{case}/block.vtu"
    kind: volume
    at: AT
    fields:
      displacement: {array: U, unit: mm}
      temperature: {array: T, unit: K}
"""


def write_block(folder: Path, length: float, load: float) -> None:
    """A block in mm whose nodes and cells have a displacement and a temperature."""
    folder.mkdir(parents=True)
    axes = (np.linspace(0, length, 8), np.linspace(0, 20, 5), np.linspace(0, 10, 4))
    mesh = pyvista.RectilinearGrid(*axes).cast_to_unstructured_grid()
    for places, data in ((mesh.points, mesh.point_data), (mesh.cell_centers().points, mesh.cell_data)):
        data["U"] = load * places * [1e-3, 0, -1e-4]
        data["T"] = 300 + places[:, 0] * load
    mesh.save(folder / "block.vtu")
    (folder / "numbers.json").write_text(json.dumps({"load": load}))


@pytest.fixture(scope="module")
def blocks(request, tmp_path_factory) -> tuple[Path, str]:
    """Prepared blocks, and a further one that none of the runs has seen."""
    folder = tmp_path_factory.mktemp(request.param)
    for index in range(8):
        write_block(folder / "cases" / f"b{index}", 80 + 5 * index, 1 + 0.1 * index)
    text = MAP.replace("AT", request.param)
    prepare(folder / "cases", folder / "out", text)
    write_block(folder / "unseen", 92, 1.3)
    return folder, request.param


@pytest.mark.parametrize(
    ("keys", "shown"),
    [
        (("volume_points", "surface_points"), "surface_points"),
        (("geometry_points", "surface_points"), "geometry_points"),
        (("anchor_block_points", "block_points", "load"), "block_points"),
        (("load",), None),
    ],
)
def test_the_shape_is_known_by_its_surface_or_else_by_its_first_set(keys, shown) -> None:
    assert shape_key(keys) == shown


@pytest.mark.slow
@pytest.mark.parametrize("blocks", ["points", "cells"], indirect=True)
def test_a_solid_trains_and_its_prediction_lies_on_the_user_s_own_mesh(blocks, noether, tmp_path: Path) -> None:
    folder, at = blocks
    words = ["train", "dataset=cases", f"dataset_root={folder / 'out'}", f"output_path={tmp_path}", "run_id=a"]
    words += ["model=mlp", "model.dim=16", "dataset.points_per_update=24", "trainer.effective_batch_size=2"]
    done = noether(*words, "trainer.max_updates=2", "tracker.report=false", "tracker.tensorboard=false")
    assert done.code == 0, done.err
    mesh, out = folder / "unseen" / "block.vtu", tmp_path / "out.vtu"
    done = noether("predict", str(tmp_path / "a"), "--mesh", str(mesh), "--set", "load=1.3", "--out", str(out))
    assert done.code == 0, done.err
    before, after = pyvista.read(mesh), pyvista.read(out)
    assert np.array_equal(before.points, after.points)
    assert np.array_equal(before.cells, after.cells)
    data = after.point_data if at == "points" else after.cell_data
    assert data["block_displacement_prediction"].shape == data["U"].shape
    assert np.isfinite(data["block_temperature_prediction"]).all()
    asked = ["sensitivity", str(tmp_path / "a"), "--mesh", str(mesh), "--set", "load=1.3"]
    refused = noether(*asked, cwd=tmp_path)
    assert (refused.code, "mean block_displacement" in refused.err) == (2, True), refused.err
    done = noether(*asked, "--of", "mean block_displacement", cwd=tmp_path)
    assert done.code == 0, done.err
    made = pyvista.read(tmp_path / "sensitivity.vtu")
    assert np.isfinite((made.point_data if at == "points" else made.cell_data)["sensitivity"]).all()
    assert data["T"].tolist() == (before.point_data if at == "points" else before.cell_data)["T"].tolist()


@pytest.mark.parametrize("blocks", ["points"], indirect=True)
def test_a_set_that_is_not_there_is_refused_with_the_line_to_write(blocks, noether, tmp_path: Path) -> None:
    words = ["train", "--dry-run", "dataset=cases", f"dataset_root={blocks[0] / 'out'}", f"output_path={tmp_path}"]
    done = noether(*words, "dataset.points_per_update.surface=64")
    assert done.code == 2
    assert "dataset.points_per_update=64" in done.err

"""`noether export`: what is loaded elsewhere predicts what the model predicts, at any number of points."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from shapenet_car_runs import SMALL, train_on

from noether.errors import RequestError
from noether.evaluation.exported import load_exported

pytest_plugins = ("shapenet_car_runs",)


def arrays_for(inputs: dict[str, list[int]], count: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(count)
    return {name: rng.uniform(-1, 1, [n if n > 0 else count, *rest]) for name, (n, *rest) in inputs.items()}


def check_export(run: Path, noether, out: Path) -> None:
    done = noether("export", str(run), str(out))
    assert done.code == 0, done.err
    assert "peak memory" in done.out
    program, weights = load_exported(out), load_exported(out, program=False)
    std = json.loads((out / "model.json").read_text())["task"]["state"]["statistics"]
    for count in (2, 77, 5000):
        arrays = arrays_for(program.inputs, count)
        one, other = program(arrays), weights(arrays)
        assert set(one) == {"surface_pressure", "volume_velocity"}
        for name, value in one.items():
            assert len(value) == count
            scale = torch.tensor(std[name]["std"])
            assert ((value - other[name]) / scale).abs().max() < 1e-5
            assert value.std(dim=0).max() > 1e-6  # it does depend on the points


@pytest.mark.slow
def test_upt_is_exported(shapenet_run, noether, tmp_path: Path) -> None:
    check_export(shapenet_run.folder, noether, tmp_path / "upt")
    model = load_exported(tmp_path / "upt")
    arrays = arrays_for(model.inputs, 50)
    more = {**arrays, "geometry_points": np.concatenate([arrays["geometry_points"]] * 2)}
    assert model(more)["surface_pressure"].shape == (50, 1)  # a larger geometry is thinned
    with pytest.raises(RequestError, match="geometry_points has the wrong shape"):
        model({**arrays, "geometry_points": arrays["geometry_points"][:9]})
    with pytest.raises(RequestError, match="surface_points is missing"):
        model({"geometry_points": arrays["geometry_points"]})
    refused = noether("export", str(shapenet_run.folder), str(tmp_path))
    assert (refused.code, "is not an export" in refused.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("experiment", "overrides"),
    [
        pytest.param(
            "ab_upt",
            ["model.dim=48", "model.physics_depth=1", "model.branch_depth=1", "model.supernodes=32"],
            id="ab-upt",
            marks=pytest.mark.nightly,
        ),
        pytest.param("transolver", ["model.dim=64", "model.depth=1"], id="transolver"),
    ],
)
def test_models_whose_points_attend_to_points_are_exported(experiment, overrides, prepared, noether, tmp_path) -> None:
    common = [setting for setting in SMALL if not setting.startswith(("model.", "trainer.ema"))]
    run = train_on(prepared, noether, tmp_path, experiment, *common, *overrides, "trainer.max_updates=2")
    check_export(run.folder, noether, tmp_path / "export")


def test_a_folder_without_an_export_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="holds no exported model"):
        load_exported(tmp_path)


@pytest.mark.parametrize("part", ["task", "model"])
def test_an_export_that_names_code_is_loaded_only_if_trusted(part: str, tmp_path: Path) -> None:
    kinds = {"task": "fields", "model": "upt", part: "os.system"}
    about = {"format": 1, **{name: {"kind": kind, "options": {}} for name, kind in kinds.items()}}
    (tmp_path / "model.json").write_text(json.dumps(about))
    with pytest.raises(RequestError) as refused:
        load_exported(tmp_path)
    assert refused.value.seen == f"{part}.kind=os.system"
    assert refused.value.fix == f"load_exported({str(tmp_path)!r}, trust=True)"

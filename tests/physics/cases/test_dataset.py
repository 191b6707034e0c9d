"""Random draws from prepared cases, and training on cases, including solids, by the documented commands."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import pyvista
import torch
import yaml
from simulated_cases import LAYOUTS, MAP, body, prepare, write_cases

from noether.config.compose import load_config
from noether.core.data.build import open_splits, prepare_data
from noether.core.data.order import SampleKey
from noether.core.data.points import STATISTICS_POINTS, PointSampler, shape_key
from noether.core.precision import Precision
from noether.core.problem import build_problem
from noether.core.tasks.base import by_channel
from noether.physics.cases.case_map import SplitMap, parse_map
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.mesh_source import FACES
from noether.physics.cases.prepare import split_cases
from noether.physics.fields.fields import FieldsTask
from noether.physics.predict.predict import _shape_warnings
from noether.physics.predict.shape_input import FileAxes
from tests.refusal import refusal


@pytest.fixture(scope="module")
def prepared(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    prepare(write_cases(folder / "source", 8), folder / "out", MAP)
    return folder / "out"


def test_a_draw_is_of_points_that_follow_one_another(prepared: Path) -> None:
    train, _, _ = open_cases(prepared)
    sample = train[0]
    count = len(sample["surface_points"])
    draw = PointSampler(0, {"surface": 40, "volume": 10**9}, 25, shuffled=True)
    starts = set()
    for epoch in range(200):
        drawn = draw.for_training(sample, SampleKey(epoch, 0))
        assert drawn["surface_points"].shape == (40, 3)
        assert drawn["geometry_points"].shape == (25, 3)
        assert drawn["volume_points"].shape == sample["volume_points"].shape
        start = int((sample["surface_points"] == drawn["surface_points"][0]).all(dim=1).nonzero()[0])
        rows = (start + torch.arange(40)) % count  # after the last row comes the first
        assert torch.equal(drawn["surface_pressure"], sample["surface_pressure"][rows])
        starts.add(start)
    assert len(starts) > 50
    again = draw.for_training(sample, SampleKey(7, 0))
    assert torch.equal(again["surface_points"], draw.for_training(sample, SampleKey(7, 0))["surface_points"])


def test_a_component_has_the_name_of_the_files_axis(tmp_path: Path) -> None:
    text = MAP.replace("wind: +x", "wind: -y")
    prepare(write_cases(tmp_path / "source", 6, turn=LAYOUTS["-y+z"]), tmp_path / "out", text)
    train, _, _ = open_cases(tmp_path / "out")
    task = FieldsTask()
    task.examine(train[0], train.about())
    batch = {key: values[None] for key, values in train[0].items()}
    off = {name: by_channel(batch[name], batched=True).clone() for name in task.fields}
    off["volume_velocity"][..., 2] += 5  # along the wind in the model's axes, which is -y in the files
    found = {key: float(value) for key, value in task.final_metrics(off, batch).items()}
    assert [found[f"volume_velocity/{axis}/mae"] for axis in "xyz"] == pytest.approx([0, 5, 0], abs=1e-5)
    assert list(task.parts_of("volume_velocity")) == ["x", "y", "z"]
    shape = SimpleNamespace(points=train[0]["surface_points"].numpy() + np.array([0, 0, 0.3]), faces=None)
    task.seen.add(train[0], {}, {})
    known = SimpleNamespace(task=task, shape_set="surface_points", points_learned=0, part_of=lambda _: FACES)
    (said,) = _shape_warnings(known, shape, {}, FileAxes.of(task.space, "files", {}), {"surface_points": "it"}, 1.0)
    assert "range along y, and" in said


def test_every_point_is_drawn_as_often() -> None:
    sample = {"surface_points": torch.arange(30.0)[:, None].expand(30, 3)}
    draw = PointSampler(3, {"surface": 7}, None, shuffled=True)
    seen = torch.cat([draw.for_training(sample, SampleKey(e, 0))["surface_points"][:, 0] for e in range(3000)])
    counts = torch.bincount(seen.long(), minlength=30).double()
    assert float((counts / counts.mean() - 1).abs().max()) < 0.15


def test_evaluation_and_statistics_take_the_first_points() -> None:
    points = torch.rand(STATISTICS_POINTS + 10, 3)
    sample = {"volume_points": points, "volume_velocity": points, "wind_speed": torch.ones(1)}
    draw = PointSampler(0, {"volume": 5}, None, shuffled=True, evaluation={"volume": 100})
    shown = draw.for_evaluation(sample)
    assert torch.equal(shown["volume_velocity"], points[:100])
    assert torch.equal(shown["anchor_volume_points"], points[:5])
    assert len(draw.for_statistics(sample)["volume_velocity"]) == STATISTICS_POINTS
    unshuffled = PointSampler(0, {}, None)
    assert len(unshuffled.for_statistics(sample)["volume_velocity"]) == len(points)


def test_the_data_set_pickles_and_names_its_cases(prepared: Path) -> None:
    train, test, validation = open_cases(prepared)
    copy = pickle.loads(pickle.dumps(train))
    assert [copy.name(i) for i in range(len(copy))] == [train.name(i) for i in range(len(train))]
    assert torch.equal(copy[1]["volume_velocity"], train[1]["volume_velocity"])
    splits = json.loads((prepared / "dataset.json").read_text())["splits"]
    assert [train.cases[i] for i in validation] == splits["validation"]
    assert test.cases == splits["test"]


def config(prepared: Path, *more: str):
    return load_config(["dataset=cases", f"dataset_root={prepared}", "model=transolver_small", *more])


def test_the_prepared_validation_split_is_used(prepared: Path) -> None:
    asked = config(prepared, "dataset.points_per_update={surface: 32, volume: 32}")
    folder = prepare_data(asked)
    problem = build_problem(asked, folder, torch.device("cpu"), Precision("float32", "cpu"))
    splits = open_splits(asked, folder)
    assert problem.validation_indices == list(splits.validation or ())
    assert problem.draw.shuffled
    assert not set(problem.train_indices) & set(problem.validation_indices)
    problem.fit()


def test_a_set_that_cases_do_not_have_is_refused(prepared: Path) -> None:
    with refusal("prepared-set-missing", fix="dataset.points_per_update=10 "):
        prepare_data(config(prepared, "dataset.points_per_update={hull: 10}"))


def test_a_case_with_fewer_points_than_are_drawn_gives_what_it_has(prepared: Path) -> None:
    prepare_data(config(prepared, "dataset.points_per_update={surface: 100000}"))
    train, _, _ = open_cases(prepared)
    drawn = PointSampler(0, 100_000, shuffled=True).for_training(train[0], SampleKey(0, 0))
    assert len(drawn["surface_points"]) == len(train[0]["surface_points"])
    drawn = PointSampler(0, 7, shuffled=True).for_training(train[0], SampleKey(0, 0))
    assert (len(drawn["surface_points"]), len(drawn["volume_points"])) == (7, 7)


def test_a_folder_without_cases_is_refused_with_the_commands(tmp_path: Path) -> None:
    for root in ("dataset_root=null", f"dataset_root={tmp_path}", f"dataset_root={tmp_path / 'none'}"):
        with refusal(fix="noether data prepare"):
            prepare_data(load_config(["dataset=cases", root]))


def test_of_three_cases_the_split_that_is_proposed_can_be_made(tmp_path: Path) -> None:
    about = parse_map(MAP, "m")
    with refusal("too-few-cases") as refused:
        split_cases(about, ["a", "b", "c"], tmp_path)
    proposed = SplitMap(**yaml.safe_load(refused.value.fix.partition("  ")[0])["split"])
    own = split_cases(about.model_copy(update={"split": proposed}), ["a", "b", "c"], tmp_path)
    assert {name: len(cases) for name, cases in own.items()} == {"train": 2, "validation": 0, "test": 1}


@pytest.mark.slow
def test_the_three_commands(noether, tmp_path: Path) -> None:
    """The cases are in millimetres. One is broken: it is named, and training uses the others."""
    root = write_cases(tmp_path / "many words in a long name, as a shared disk has" / "source", 8, scale=1000.0)
    (root / "run_5" / "surface.vtp").write_bytes(b"<VTKFile")
    mapped, out = tmp_path / "cases.yaml", tmp_path / "out"
    inspected = noether("data", "inspect", str(root), "--out", str(mapped), code=0)
    assert f"then: noether data prepare '{root}' OUT --map {mapped}\n" in inspected.out
    assert "run_5" in inspected.out + inspected.err
    refused = noether("data", "prepare", str(root), str(out), "--map", str(mapped))
    assert (refused.code, "run_5" in refused.err, "--skip-broken" in refused.err) == (2, True, True), refused.err
    done = noether("data", "prepare", str(root), str(out), "--map", str(mapped), "--skip-broken", code=0)
    assert "7 cases" in done.out.replace("were there", "") or "cases prepared" in done.out
    trained = noether(
        "train", "dataset=cases", f"dataset_root={out}", "model=transolver_small", "accelerator=cpu", "devices=1",
        "trainer.effective_batch_size=4",
        "dataset.points_per_update={surface: 64, volume: 64}", "trainer.max_updates=2", f"output_path={tmp_path}",
        "run_id=own",
    )  # fmt: skip
    assert trained.code == 0, trained.err
    result = json.loads((tmp_path / "own" / "result.json").read_text())
    assert np.isfinite(result["metrics"]["surface_pressure/relative_l2"])
    shape = body(0.85)
    shape.points = 1000 * shape.points
    shape.triangulate().save(tmp_path / "own.stl")
    names = json.loads((out / "dataset.json").read_text())["parameters"]
    given = ",".join(f"{name}={0.5 * (one['low'] + one['high'])}" for name, one in names.items())
    asked = ("predict", str(tmp_path / "own"), "--mesh", str(tmp_path / "own.stl"), "--set", given)
    told = noether(*asked, "--out", str(tmp_path / "own.vtp"), code=0)
    assert "wind +x, up +z" in " ".join(told.out.split())
    assert "0.001" in told.out
    written = pyvista.read(tmp_path / "own.vtp")
    assert written.bounds == pytest.approx((0, 850, -200, 200, 100, 400), abs=1e-2)  # the same as those of own.stl
    assert {"surface_pressure_prediction", "surface_wall_shear_prediction"} <= set(written.point_data.keys())
    turned = noether(*asked, "--axes", "model", "--scale", "0.001", "--out", str(tmp_path / "turned.vtp"))
    assert "trained on" in turned.err + turned.out
    again = noether("data", "inspect", str(root), "--out", str(mapped))
    assert (again.code, "--out another.yaml" in again.err) == (2, True)


BLOCKS = """
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
    """Write a solid block in mm, with displacements and temperatures at its nodes and at its cells."""
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
    """Return a folder with prepared blocks and an unseen block, and the place of their fields: points or cells."""
    folder = tmp_path_factory.mktemp(request.param)
    for index in range(8):
        write_block(folder / "cases" / f"b{index}", 80 + 5 * index, 1 + 0.1 * index)
    text = BLOCKS.replace("AT", request.param)
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
    noether(*words, "trainer.max_updates=2", "tracker.report=false", "tracker.tensorboard=false", code=0)
    mesh, out = folder / "unseen" / "block.vtu", tmp_path / "out.vtu"
    noether("predict", str(tmp_path / "a"), "--mesh", str(mesh), "--set", "load=1.3", "--out", str(out), code=0)
    before, after = pyvista.read(mesh), pyvista.read(out)
    assert np.array_equal(before.points, after.points)
    assert np.array_equal(before.cells, after.cells)
    data = after.point_data if at == "points" else after.cell_data
    assert data["block_displacement_prediction"].shape == data["U"].shape
    assert np.isfinite(data["block_temperature_prediction"]).all()
    asked = ["sensitivity", str(tmp_path / "a"), "--mesh", str(mesh), "--set", "load=1.3"]
    refused = noether(*asked, cwd=tmp_path)
    assert (refused.code, "mean block_displacement" in refused.err) == (2, True), refused.err
    noether(*asked, "--of", "mean block_displacement", cwd=tmp_path, code=0)
    made = pyvista.read(tmp_path / "sensitivity.vtu")
    assert np.isfinite((made.point_data if at == "points" else made.cell_data)["sensitivity"]).all()
    assert data["T"].tolist() == (before.point_data if at == "points" else before.cell_data)["T"].tolist()

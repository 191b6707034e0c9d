"""An export works in programs without noether: its example needs only torch, and batches may have any size."""

import json
import os
import shutil
import stat
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pytest
import torch
from sharing import in_every_push

from noether.physics.export.exported_model import load_exported
from tests.refusal import refusal

SMALL_RUNS = Path(__file__).with_name("small_runs")
READS = {
    "upt": {"geometry_points", "surface_points", "volume_points"},
    "ab_upt": {"geometry_points", "anchor_surface_points", "anchor_volume_points", "surface_points", "volume_points"},
    "transolver": {"anchor_surface_points", "anchor_surface_normals", "anchor_volume_points", "anchor_volume_normals",
                   "anchor_volume_sdf", "surface_points", "surface_normals", "volume_points", "volume_normals",
                   "volume_sdf"},
}  # fmt: skip


@pytest.fixture(scope="module", params=in_every_push(READS.keys(), "upt"))
def export(request, noether, tmp_path_factory) -> tuple[str, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    shutil.copytree(SMALL_RUNS / request.param, folder / "run")
    done = noether("export", str(folder / "run"), str(folder / "out"), code=0)
    assert "the program differs from the model by" in done.out
    return request.param, folder / "out"


def torch_alone(folder: Path) -> Path:
    """Return a folder that contains, of this environment, only torch and the packages that torch requires."""
    wanted, seen = ["torch"], set()
    while wanted:
        name = wanted.pop()
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        wanted += [line.split(";")[0].strip().split(" ")[0].split("<")[0].split(">")[0].split("=")[0].split("!")[0]
                   for line in found.requires or [] if ";" not in line]  # fmt: skip
        for top in {Path(file).parts[0] for file in found.files or []}:
            place = Path(str(found.locate_file(top)))
            if ".." not in top and place.exists() and not (folder / top).exists():
                (folder / top).symlink_to(place)
    return folder


def test_the_example_runs_with_torch_alone(export, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    alone = torch_alone(tmp_path / "alone")
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(alone)}
    python = [sys.executable, "-S"]
    absent = subprocess.run([*python, "-c", "import noether"], env=environ, capture_output=True, cwd=tmp_path)
    assert absent.returncode == 1
    words = [*python, str(export[1] / "example.py")]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "surface_pressure: shape (2, 1000, 1)" in done.stdout
    assert "volume_velocity: shape (2, 1000, 3)" in done.stdout


def test_only_what_the_model_reads_is_asked_for(export) -> None:
    kind, folder = export
    about = json.loads((folder / "model.json").read_text())
    assert about["axes"] == "x across, y up, z along the wind"
    assert READS[kind] == {argument["name"] for argument in about["arguments"]}
    assert [result["name"] for result in about["results"]] == ["surface_pressure", "volume_velocity"]


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_batches_of_any_size_are_answered_as_their_samples_are(export, samples: int) -> None:
    loaded = load_exported(export[1], trust=True)
    generator = torch.Generator().manual_seed(samples)
    shapes = [[samples, 70 if n < 0 else n, *rest] for n, *rest in loaded.inputs.values()]
    arguments = [torch.rand(shape, generator=generator) for shape in shapes]
    together = loaded.run(*arguments)
    for k in range(samples):
        alone = loaded({name: value[k].numpy() for name, value in zip(loaded.inputs, arguments, strict=True)})
        for name, value in zip(alone, together, strict=True):
            np.testing.assert_allclose(value[k].detach(), alone[name], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("count", [2, 77, 5000])
def test_program_and_weights_agree_at_any_number_of_points(export, count: int) -> None:
    program, weights = load_exported(export[1], trust=True), load_exported(export[1])
    std, rng = program.about["task"]["state"]["statistics"], np.random.default_rng(count)
    arrays = {name: rng.uniform(-1, 1, [n if n > 0 else count, *rest]) for name, (n, *rest) in program.inputs.items()}
    one, other = program(arrays), weights(arrays)
    for name, value in one.items():
        assert len(value) == count
        assert ((value - other[name]) / torch.tensor(std[name]["std"])).abs().max() < 1e-5
        assert value.std(dim=0).max() > 1e-6, "predictions must depend on the points"
    twice = {name: np.concatenate([arrays[name]] * 2) for name in arrays if name == "geometry_points"}
    assert len(program({**arrays, **twice})["surface_pressure"]) == count, "a larger geometry must be thinned"


def test_every_file_has_the_same_mode(export) -> None:
    assert len({stat.S_IMODE(path.stat().st_mode) for path in export[1].iterdir()}) == 1


def test_an_export_is_replaced_only_when_asked(export, noether) -> None:
    run = export[1].parent / "run"
    before = (export[1] / "model.json").stat().st_mtime_ns
    refused = noether("export", str(run), str(export[1]), "--weights-only")
    assert refused.code == 2
    assert "--overwrite" in refused.err
    assert (export[1] / "model.json").stat().st_mtime_ns == before
    refused = noether("export", str(run), str(export[1].parent))
    assert (refused.code, "is not an export" in refused.err) == (2, True)
    shutil.copytree(export[1], export[1].parent / "copy", dirs_exist_ok=True)
    noether("export", str(run), str(export[1].parent / "copy"), "--weights-only", "--overwrite", code=0)
    assert not (export[1].parent / "copy" / "model.pt2").exists()


def test_arrays_that_do_not_fit_are_told_in_a_sentence(export) -> None:
    """This is tested with the graph, whose guards would fail, and with the weights alone, whose layers would fail."""
    kind, folder = export
    for model in (load_exported(folder, trust=True), load_exported(folder)):
        arrays = {name: np.zeros([50 if n < 0 else n, *rest]) for name, (n, *rest) in model.inputs.items()}
        assert len(model(arrays)["surface_pressure"]) == 50
        with refusal("export-input-missing"):
            model({})
        for name, (length, *_) in model.inputs.items():
            other_length = {**arrays, name: arrays[name][:-1]}
            if length > 0:
                with refusal("export-input-shape"):
                    model(other_length)
            elif kind == "transolver":  # UPT has a separate array for each set.
                with refusal("export-input-lengths"):
                    model(other_length)

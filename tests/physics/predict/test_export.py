"""`noether export`: inputs, refusals and trust. test_export_alone.py tests the exported program."""

import io
import json
import os
import shutil
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from processes import flip

from noether import load_run
from noether.checkpoints.named import named_weights
from noether.common.errors import RequestError
from noether.physics.export.export import _argument
from noether.physics.export.exported_model import ExportedModel, load_exported
from noether.physics.settings import ParameterConfig
from tests.refusal import refusal

SMALL_RUN = Path(__file__).with_name("small_runs") / "upt"
RELEASED = Path(__file__).parents[2] / "checkpoints" / "released" / "0.1.0" / "export"


class MakesFolder:
    """Creates a folder when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (self.path,)


def test_each_component_of_a_parameter_has_its_own_range() -> None:
    seen = {"wind": {"low": [0.0, 100.0], "high": [1.0, 110.0]}, "angle": {"low": [-5.0], "high": [5.0]}}
    task = SimpleNamespace(parameters=dict.fromkeys(seen, ParameterConfig()), seen=SimpleNamespace(parameters=seen))
    task.domain = (-2.0, 5.0)
    trained = SimpleNamespace(task=task, axes=())
    distance = _argument(trained, "volume_sdf", torch.zeros(1, 9))
    assert (distance["low"], distance["high"], distance["unit"]) == (0.0, 5.0, "m")
    wind, angle = (_argument(trained, name, torch.zeros(1, len(span["low"]))) for name, span in seen.items())
    assert (wind["low"], wind["high"]) == ([0.0, 100.0], [1.0, 110.0])
    assert (angle["low"], angle["high"]) == (-5.0, 5.0)


def test_a_parameter_takes_as_many_numbers_as_it_has() -> None:
    model = ExportedModel({"arguments": [{"name": "wind", "shape": ["batch", 1]}], "results": []}, lambda *_: ())
    model({"wind": 30.0})
    with refusal("export-input-shape"):
        model({"wind": [30.0, 31.0]})


def test_an_export_reads_the_points_of_a_shape_that_predict_reads(noether, tmp_path: Path) -> None:
    assert noether("export", str(SMALL_RUN), str(tmp_path / "export"), "--weights-only").code == 0
    model, run, rng = load_exported(tmp_path / "export"), load_run(SMALL_RUN), np.random.default_rng(0)
    for count in (50, 64, 300):  # In training it got 64 points, of which it reads 32.
        points = rng.uniform([-0.8, 0, -2], [0.8, 1.2, 2], (count, 3))
        air = points + np.array([0, 1.5, 0])
        found = model({"geometry_points": points, "surface_points": points, "volume_points": air})
        expected = run.predict(points, volume=air)["surface_pressure"]
        np.testing.assert_allclose(found["surface_pressure"][:, 0], expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
@pytest.mark.parametrize(
    "way", [os.mkfifo, lambda path: path.symlink_to("/dev/zero"), Path.touch], ids=["pipe", "endless", "empty"]
)
def test_a_folder_of_something_else_is_refused_and_not_waited_for(name: str, way, tmp_path: Path) -> None:
    shutil.copytree(RELEASED, tmp_path / "theirs")
    (tmp_path / "theirs" / name).unlink()
    way(tmp_path / "theirs" / name)
    with pytest.raises(RequestError) as refused:
        load_exported(tmp_path / "theirs")
    assert refused.value.code in ("no-exported-model", "packed-data-damaged")


def test_weights_with_a_flipped_bit_are_not_loaded_and_not_begun_with(noether, tmp_path: Path) -> None:
    out = tmp_path / "export"
    assert noether("export", str(SMALL_RUN), str(out), "--weights-only").code == 0
    load_exported(out)
    flip(out / "model.safetensors", -1)
    with refusal("packed-data-damaged"):
        load_exported(out)
    for where in (out, out / "model.safetensors"):
        with refusal("packed-data-damaged"):
            named_weights(str(where))


@pytest.mark.parametrize("part", ["task", "model"])
def test_an_export_that_names_code_is_loaded_only_if_trusted(part: str, tmp_path: Path) -> None:
    about = json.loads((RELEASED / "model.json").read_text())
    about[part]["kind"] = "os.system"
    (tmp_path / "model.json").write_text(json.dumps(about))
    with refusal(seen="os.system", fix="trust=True"):
        load_exported(tmp_path)


@pytest.mark.parametrize("program", [None, True])
def test_a_graph_that_is_not_trusted_is_not_read(program: bool | None, tmp_path: Path) -> None:
    """torch.export.load unpickles the sample inputs, and a pickle can run any code."""
    shutil.copytree(RELEASED, tmp_path / "theirs")
    forged = io.BytesIO()
    torch.save(MakesFolder(str(tmp_path / "was-here")), forged)
    theirs = tmp_path / "theirs" / "model.pt2"
    with zipfile.ZipFile(RELEASED / "model.pt2") as sound, zipfile.ZipFile(theirs, "w") as archive:
        for name in sound.namelist():
            archive.writestr(name, forged.getvalue() if "sample_inputs" in name else sound.read(name))
    with pytest.raises(RequestError) if program else nullcontext():
        load_exported(tmp_path / "theirs", program=program)
    assert not (tmp_path / "was-here").exists()
    with suppress(Exception):  # A trusted forgery raises an error after it has run its code.
        load_exported(tmp_path / "theirs", program=True, trust=True)
    assert (tmp_path / "was-here").exists()


def test_a_folder_that_cannot_be_made_is_refused(noether, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    done = noether("export", str(SMALL_RUN), str(tmp_path / "file" / "export"))
    assert done.code == 2
    assert "[export-folder-not-made]" in done.err


def test_of_two_exports_to_one_folder_one_is_whole(noether, tmp_path: Path) -> None:
    out = tmp_path / "export"
    with ThreadPoolExecutor() as side_by_side:
        done = list(side_by_side.map(lambda _: noether("export", str(SMALL_RUN), str(out), "--weights-only"), range(2)))
    assert 0 in [one.code for one in done]
    assert load_exported(out).inputs
    assert [path.name for path in tmp_path.iterdir()] == ["export"]

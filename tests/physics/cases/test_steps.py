"""Files of several time steps: either one step is chosen, or every step is a case that knows its time."""

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import meshio
import numpy as np
import pytest
import pyvista
from simulated_cases import drafted, prepare

from noether.physics.cases.case_map import AtTime, SetMap, Step, parse_map
from noether.physics.cases.dataset import open_cases
from noether.physics.cases.mesh_source import read_set
from noether.physics.cases.prepare import plan_cases
from tests.physics.cases.write_steps import block
from tests.refusal import refusal

TIMES = (0.0, 0.5, 2.0)
WRITE_STEPS = Path(__file__).with_name("write_steps.py")


def by_vtk(path: Path) -> None:
    """Write in a new process, because VTK's Exodus writer sometimes crashes in a process that has used VTK before."""
    subprocess.run([sys.executable, WRITE_STEPS, path, *map(str, TIMES)], check=True, timeout=100)


def by_meshio(path: Path, form: str = "XML") -> None:
    mesh = pyvista.to_meshio(block(0))
    with meshio.xdmf.TimeSeriesWriter(path, data_format=form) as writer:
        writer.write_points_cells(mesh.points, mesh.cells)
        for time in TIMES:
            writer.write_data(time, point_data={"T": np.full(len(mesh.points), 300 + time)})


def med(path: Path) -> None:
    """Write one step with meshio, which cannot write more; then add steps to the field's group, as SALOME does."""
    mesh = pyvista.to_meshio(block(TIMES[0]))
    mesh.cell_data = {}
    meshio.write(path, mesh)
    with h5py.File(path, "r+") as file:
        steps = file["CHA/T"]
        (first,) = steps
        for number, time in enumerate(TIMES[1:], 2):
            steps.copy(first, name := f"{number:020d}{number:020d}")
            steps[name].attrs["PDT"] = time
            steps[name].visititems(lambda _, item, time=time: _add(item, time))


def _add(item: h5py.Dataset | h5py.Group, time: float) -> None:
    if isinstance(item, h5py.Dataset):
        item[...] += time


def pieces(path: Path) -> Sequence[tuple[float, str]]:
    names = [f"{path.name.partition('.')[0]}_{step}.vtu" for step in range(len(TIMES))]
    for time, name in zip(TIMES, names, strict=True):
        block(time).save(path.with_name(name))
    return list(zip(TIMES, names, strict=True))


def cgns(path: Path) -> None:
    """Write a stored file of 8 hexahedra, which the CGNS library 3.4 made (cg_biter_write, cg_ziter_write)."""
    path.write_bytes(gzip.decompress((Path(__file__).parent / "steps.cgns.gz").read_bytes()))


def collection(path: Path) -> None:
    steps = [f'<DataSet timestep="{time}" part="0" file="{name}"/>' for time, name in pieces(path)]
    path.write_text(f'<VTKFile type="Collection" version="0.1"><Collection>{"".join(steps)}</Collection></VTKFile>')


def series(path: Path) -> None:
    """Write numbered files, and the list of them that ParaView reads."""
    files = [{"name": name, "time": time} for time, name in pieces(path)]
    path.write_text(json.dumps({"file-series-version": "1.0", "files": files}))


WRITERS: dict[str, Callable[[Path], None]] = {
    ".pvd": collection, ".vtu.series": series, ".exo": by_vtk, ".vtkhdf": by_vtk, ".xdmf": by_meshio, ".med": med,
    ".cgns": cgns,
}  # fmt: skip
ABOUT = SetMap.model_validate({"file": "{case}", "kind": "volume", "at": "points", "fields": {"t": {"array": "T"}}})


@pytest.mark.parametrize("suffix", WRITERS)
def test_the_step_that_is_asked_for_is_read(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"case{suffix}"
    WRITERS[suffix](path)
    asked: tuple[Step, ...] = ("last", 1, -3, AtTime(time=0.5))
    for step, time in zip(asked, (2.0, 0.5, 0.0, 0.5), strict=True):
        assert set(read_set(path, ABOUT, step).fields["t"][:, 0]) == {300 + time}, step
    for step in (3, AtTime(time=0.6)):
        with refusal("no-such-step", seen="3 steps"):
            read_set(path, ABOUT, step)


def test_the_points_of_exodus_are_those_of_the_body_before_it_is_deformed(tmp_path: Path) -> None:
    by_vtk(tmp_path / "case.exo")
    found = read_set(tmp_path / "case.exo", ABOUT).points
    assert np.sort(found, axis=0) == pytest.approx(np.sort(block(0).points, axis=0))


def test_a_series_without_the_file_of_its_numbers_is_refused_in_a_line(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.chdir(tmp_path)  # meshio writes case.h5 to the working directory
    by_meshio(tmp_path / "case.xdmf", "HDF")
    assert set(read_set(tmp_path / "case.xdmf", ABOUT, 1).fields["t"][:, 0]) == {300.5}
    (tmp_path / "case.h5").unlink()
    with refusal("case-file-unreadable", seen="case.h5"):
        read_set(tmp_path / "case.xdmf", ABOUT)
    assert capfd.readouterr().err == ""


def write_runs(root: Path, suffix: str, count: int = 5) -> Path:
    for run in range(count):
        (root / f"run_{run}").mkdir(parents=True)
        (WRITERS.get(suffix) or pieces)(root / f"run_{run}" / f"flow{suffix}")
        pyvista.Sphere().save(root / f"run_{run}" / "shape.stl")
        (root / f"run_{run}" / "numbers.json").write_text(json.dumps({"speed": 20 + run}))
    return root


@pytest.mark.parametrize(
    ("suffix", "template", "times"),
    [(".pvd", "{case}/flow.pvd", ["0", "0.5", "2"]), (".vtu", "{case}/flow_{step}.vtu", ["0", "1", "2"])],
)
def test_each_step_is_a_case_that_knows_its_time(suffix: str, template: str, times: list[str], tmp_path: Path) -> None:
    root, out = write_runs(tmp_path / "source", suffix), tmp_path / "out"
    text, _ = drafted(root, workers=0)
    assert "has 3 steps" in text
    assert parse_map(text, "m").sets["volume"].file == template
    if "{step}" in template:  # the draft leaves the choice of a step to the user
        with refusal("step-not-said"):
            prepare(root, out, text, workers=0)
        assert not out.exists()
        text = text.replace("# step: last", "step: last")
    assert prepare(root, out, text, workers=0).made == 5  # the last step of each run
    text = text.replace("step: last", "step: each")
    done = prepare(root, out, text, workers=0)
    assert list(done.cases) == [f"run_{run}@{time}" for run in range(5) for time in times]
    together = [{name.partition("@")[0] for name in own} for own in done.splits.values()]
    assert sum(map(len, together)) == len(set.union(*together)) == 5
    train, _, _ = open_cases(out)
    for index in range(len(train)):
        sample, time = train[index], float(train.cases[index].partition("@")[2])
        assert (float(sample["time"]), len(sample["volume_temperature"])) == (time, 60)
        assert float(sample["volume_temperature"][0]) == 300 + TIMES[times.index(f"{time:g}")]
    assert plan_cases(root, out, parse_map(text, "m"), 0)[0] == []
    os.utime(root / "run_2" / "flow_1.vtu", (1, 1))
    changed = {job.case for job in plan_cases(root, out, parse_map(text, "m"), 0)[0]}
    assert changed == {f"run_2@{time}" for time in (times if suffix == ".pvd" else times[1:2])}


def test_a_run_without_steps_or_with_another_is_named(tmp_path: Path) -> None:
    root = write_runs(tmp_path / "source", ".pvd")
    text, _ = drafted(root, workers=0)
    block(0).save(root / "run_3" / "flow_9.vtu")
    (root / "run_3" / "flow.pvd").write_text((root / "run_3" / "flow.pvd").read_text().replace("0.5", "0.6"))
    with refusal("no-such-step", words="run_3"):
        prepare(root, tmp_path / "out", text.replace("step: last", "step: {time: 0.5}"), workers=0)
    (root / "run_3" / "flow.pvd").write_text("<VTKFile")
    (root / "run_3").rename(root / "run@3rd")
    done = prepare(root, tmp_path / "out", text.replace("step: last", "step: each"), workers=0, skip_broken=True)
    assert list(done.broken) == ["run@3rd"]
    assert len(done.cases) == 12
    none_held_out = text.replace("step: last", "step: each").replace("validation: 0.1", "validation: 0")
    with refusal("no-run-held-out"):
        prepare(root, tmp_path / "out", none_held_out, workers=0, skip_broken=True)

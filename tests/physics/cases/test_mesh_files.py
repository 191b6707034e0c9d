"""Broken meshes, and files of arrays with arbitrary bytes, are refused with a message."""

import contextlib
import faulthandler
import gzip
import pickle
import subprocess
import sys
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import pyvista

from noether.common.errors import RequestError
from noether.physics.cases.mesh_files import read_array
from noether.physics.cases.mesh_source import main, read_mesh_apart, read_part
from noether.physics.predict.shape_input import read_shape
from tests.refusal import refusal

SPHERE = pyvista.Sphere(theta_resolution=8, phi_resolution=8)
SPHERE.point_data["pressure"] = SPHERE.points[:, 0]


def test_polygons_become_triangles(tmp_path: Path) -> None:
    points = np.array([[0, 0, 0], [1, 0, 0], [1.5, 1, 0], [0.5, 2, 0], [-0.5, 1, 0], [2, 0, 1]], float)
    pyvista.PolyData(points, faces=[5, 0, 1, 2, 3, 4, 3, 1, 5, 2]).save(tmp_path / "faces.vtp")
    mesh = read_part(tmp_path / "faces.vtp")
    assert sorted(map(tuple, mesh.triangles.tolist())) == [(0, 1, 2), (0, 2, 3), (0, 3, 4), (1, 5, 2)]
    assert len(mesh.quads) == 0


def test_the_process_apart_reads_the_same(tmp_path: Path) -> None:
    SPHERE.save(tmp_path / "sphere.vtp")
    here, apart = read_part(tmp_path / "sphere.vtp"), read_mesh_apart(tmp_path / "sphere.vtp")
    assert np.array_equal(here.points, apart.points)
    assert np.array_equal(here.triangles, apart.triangles)
    assert np.array_equal(here.values["pressure"], apart.values["pressure"])


def broken_files(folder: Path) -> dict[str, bytes]:
    """Return the contents of intact files in every format, as text and as binary, for a test to break."""
    whole = {}
    for suffix in (".vtk", ".vtp", ".stl", ".ply"):
        for binary in (True, False):
            path = folder / f"whole-{binary}{suffix}"
            SPHERE.save(path, binary=binary)
            whole[path.name] = path.read_bytes()
    SPHERE.cast_to_unstructured_grid().save(folder / "whole.vtu")
    SPHERE.save(folder / "whole.obj")
    return whole | {name: (folder / name).read_bytes() for name in ("whole.vtu", "whole.obj")}


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    raw, kind = bytearray(content), rng.integers(3)
    if kind == 0:
        return bytes(raw[: rng.integers(len(raw))])
    if kind == 1:
        first, last = sorted(rng.integers(len(raw), size=2))
        return bytes(raw[:first] + raw[last:])
    for place in rng.integers(min(len(raw), 400), size=rng.integers(1, 6)):
        raw[place] = rng.integers(256)
    return bytes(raw)


def read_quietly(path: Path, result: Path) -> None:
    faulthandler.disable()
    main(str(path), str(result), '["faces"]')


def test_mutated_meshes_are_read_or_refused(tmp_path: Path) -> None:
    """Each file is read in a forked process that has VTK imported, because a truncated binary .ply crashes VTK."""
    rng, refused, crashed = np.random.default_rng(0), 0, 0
    for name, content in broken_files(tmp_path).items():
        for _ in range(3):
            (tmp_path / name).write_bytes(mutated(content, rng))
            reader = get_context("fork").Process(target=read_quietly, args=(tmp_path / name, tmp_path / "result"))
            reader.start()
            reader.join(60)
            assert reader.exitcode is not None
            assert reader.exitcode <= 0, "the reader raised an error other than RequestError"
            if reader.exitcode:
                with pytest.raises(RequestError, match=name):
                    read_mesh_apart(tmp_path / name)
                crashed += 1
            else:
                read = pickle.loads((tmp_path / "result").read_bytes())
                refused += isinstance(read, RequestError) and str(tmp_path / name) in str(read)
    assert crashed > 0
    assert refused > 5


def test_a_shape_whose_reader_ends_its_process_is_refused(tmp_path: Path) -> None:
    content = bytearray(gzip.decompress((Path(__file__).parent / "steps.cgns.gz").read_bytes()))
    content[4312] = 87  # With this byte, the CGNS library calls exit().
    (tmp_path / "shape.cgns").write_bytes(content)
    with refusal("mesh-unreadable", seen="crashed (exit code"):
        read_shape(tmp_path / "shape.cgns")


def test_mutated_arrays_are_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "points.npy"
    np.save(path, np.zeros((50, 3)))
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(2000):
        raw = bytearray(whole)
        for place in rng.integers(130, size=rng.integers(1, 5)):
            raw[place] = rng.integers(256)
        path.write_bytes(bytes(raw))
        with contextlib.suppress(RequestError):
            read_array(path)


NO_MESHES = {"mesh.xyz": b"0 0 0", "torn.stl": b"solid nothing", "torn.vtu": b"<VTKFile", "empty.ply": b""}
NO_MESHES |= {
    "lfs.vtu": b"version https://git-lfs.github.com/spec/v1",
    "torn.vtp": b'<VTKFile type="PolyData"><PolyData>',
    "page.vtk": b"<html>404</html>",
}
OTHERS = ("msh", "inp", "bdf", "med", "exo", "vti", "pvd", "vtkhdf", "xdmf", "series", "plt", "frd", "csv")
NO_MESHES |= {f"other-bytes.{suffix}": b"neither\x00 this nor that\n" * 40 for suffix in OTHERS}


@pytest.mark.parametrize(("name", "content"), NO_MESHES.items(), ids=NO_MESHES)
def test_a_file_that_is_not_a_mesh_is_refused_in_words(name: str, content: bytes, tmp_path: Path, capfd) -> None:
    (tmp_path / name).write_bytes(content)
    with refusal(words=name) as refused:
        read_part(tmp_path / name)
    assert name != "mesh.xyz" or "'.xyz'" in refused.value.seen
    assert capfd.readouterr().err.count("\n") <= 1


def test_without_pyvista_the_extra_is_named(tmp_path: Path) -> None:
    SPHERE.save(tmp_path / "sphere.stl")
    code = (
        "import sys; sys.modules['pyvista'] = None\n"
        "from pathlib import Path\nfrom noether.physics.cases.mesh_source import read_part\n"
        f"read_part(Path({str(tmp_path / 'sphere.stl')!r}))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "pip install pyvista " in ended.stderr

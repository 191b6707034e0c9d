"""The meshes of a file, at one of its steps, in any format that VTK, meshio or noether reads."""

import contextlib
import io
import math
import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from noether.common.errors import RequestError, one_line
from noether.physics.cases.case_map import AtTime, Step
from noether.physics.cases.frd import FrdFile
from noether.physics.cases.mesh_files import import_pyvista, output_of, raising_what_vtk_says
from noether.physics.cases.tables import is_cloud, read_cloud

SHAPES = (".stl", ".obj", ".ply")
VTK_SUFFIXES = (
    ".vtp", ".vtu", ".vtm", ".vtk", ".vti", ".vtr", ".vts", ".vtkhdf", ".pvtu", ".pvd", ".series", ".exo", ".ex2",
    *SHAPES, ".case", ".encas", ".cgns", ".foam", ".plt", ".tec",
)  # fmt: skip
DECKS = (".msh", ".inp", ".bdf", ".nas")
"""Meshes that solvers read: they count only where no results lie beside them."""
MESHIO_SUFFIXES = (*DECKS, ".med", ".xdmf")
SUFFIXES = (*VTK_SUFFIXES, *MESHIO_SUFFIXES, ".frd", ".npz")
LISTS = (".pvd", ".series", ".vtm", ".pvtu", ".xdmf")
NAMED = re.compile(r"""(?:file|Source)\s*=\s*["']([^"']+)|"name"\s*:\s*"([^"]+)"|([\w./-]+\.h(?:5|df5?)):/""")
MED_STEP = re.compile(r"(.+)\[\d+\] - ([-+.\de]+)$")
BY_CONTENT = (".csv", ".dat")
"""Meshes or numbers: `is_mesh_inside` tells them apart."""
TECPLOT = (".plt", ".tec", ".dat")
FIRST_WORDS = (b"TITLE", b"FILETYPE", b"VARIABLES", b"ZONE")
ZONE_OR_TIME = re.compile(rb"^[ \t]*ZONE\b|\bSOLUTIONTIME[ \t]*=[ \t]*([-+.\dED]+)", re.MULTILINE | re.IGNORECASE)


class Block(NamedTuple):
    """One mesh of a file, by the name of its block or patch ("" where a file has only one)."""

    name: str
    mesh: Any


class _Opened(NamedTuple):
    """The times of a file's steps, and what reads its mesh at one of them, by its place among the times."""

    times: list[float]
    mesh: Callable[[int], Any]


def read_blocks(
    path: Path, arrays: set[str] | None = None, step: Step = "last", coordinates: Sequence[str] = ()
) -> list[Block]:
    """Reads every mesh of a file at a step; `arrays` are those to read (None: all), `coordinates` as of `read_cloud`.

    RequestError: the file is missing, of an unknown format, or cannot be read, or has no such step.
    """
    return read_times_and_blocks(path, arrays, step, coordinates)[1]


def read_times(path: Path) -> list[float]:
    """Returns the times of a file's steps, in order; none where it has no time. RequestError as `read_blocks`."""
    with _refusing(path):
        return _opened(path).times


def read_times_and_blocks(
    path: Path, arrays: set[str] | None = None, step: Step = "last", coordinates: Sequence[str] = ()
) -> tuple[list[float], list[Block]]:
    """Returns what `read_times` and `read_blocks` do, from one opening of the file."""
    with _refusing(path):
        opened = _opened(path, arrays, coordinates)
        mesh = opened.mesh(chosen(opened.times, step, path))
    blocks = [block for block in _blocks(mesh, "") if block.mesh.n_points]
    if not blocks:
        raise RequestError(
            "case-file-without-points", f"{path} holds no points", seen="an empty mesh", expected="a complete file"
        )
    return opened.times, blocks


def files_behind(path: Path, depth: int = 2) -> list[Path]:
    """The files that a mesh is made of: the folder of an OpenFOAM case, a list and the files that it names, or one.

    depth: of lists that name lists, as a .vtm.series does.
    """
    if path.name == "polyMesh":  # the fields lie beside it
        return sorted(path.parent.parent.rglob("*"))
    if path.suffix.lower() not in LISTS or not depth:
        return [path]
    return [path, *(behind for file in _named_in(path) if file.is_file() for behind in files_behind(file, depth - 1))]


def _named_in(path: Path) -> list[Path]:
    found = NAMED.findall(path.read_text(errors="replace"))
    return sorted({path.parent / name for names in found for name in names if name})


def is_mesh_inside(path: Path) -> bool:
    """Whether a file of BY_CONTENT is a mesh: a CSV with coordinates, Tecplot's .dat."""
    if path.suffix.lower() == ".csv":
        return is_cloud(path)
    return begins_as_tecplot(_head(path, 4096))


def chosen(times: Sequence[float | None], step: Step, path: Path | str) -> int:
    """Returns which of the times a step is; the only one is every step. RequestError: there is no such step."""
    if step == "last" or len(times) < 2:
        return len(times) - 1
    if isinstance(step, AtTime):
        for index, time in enumerate(times):
            if math.isclose(time or 0.0, step.time, rel_tol=1e-6, abs_tol=1e-12):
                return index
    elif -len(times) <= step < len(times):
        return step % len(times)
    seen = f"time {step.time:g}" if isinstance(step, AtTime) else f"step {step}"
    raise RequestError(
        "no-such-step",
        f"{path} has no {seen}",
        seen=f"{len(times)} steps, at times {', '.join(f'{time:g}' for time in times[:3])} … {times[-1]:g}",
        expected=f"last, each, a number from 0 to {len(times) - 1}, or one of those times",
        fix="step: last      (or step: {time: T}, in the map)",
    )


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Refuses a file that is not there, of an unknown format, or on whose bytes a reader fails."""
    if not path.exists() or (path.name != "polyMesh" and path.suffix.lower() not in (*SUFFIXES, *BY_CONTENT)):
        seen = "no such file" if not path.exists() else f"the suffix {path.suffix!r}"
        raise RequestError(
            "case-file-unreadable",
            f"{path} cannot be read",
            seen=seen,
            expected=", ".join((*SUFFIXES, *BY_CONTENT)) + " or constant/polyMesh",
        )
    try:
        yield
    except RequestError:
        raise
    except (Exception, SystemExit) as error:  # whatever a parser raises on bytes that are not its format
        raise unreadable(path, error) from None


def unreadable(path: Path, error: BaseException) -> RequestError:
    """The refusal of a file of which a reader says what is wrong."""
    return RequestError(
        "case-file-unreadable", f"{path} cannot be read", seen=one_line(error), expected="a complete file"
    )


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _opened(path: Path, arrays: set[str] | None = None, coordinates: Sequence[str] = ()) -> _Opened:
    suffix = path.suffix.lower()
    if suffix == ".npz":
        return _Opened([], lambda place: _from_arrays(path))
    if suffix == ".csv":
        return _Opened([], lambda place: read_cloud(path, coordinates))
    if suffix == ".frd":
        results = FrdFile(path)
        return _Opened(results.times, results.mesh)
    if suffix in TECPLOT and set(zones := times_of_zones(path)) - {None}:
        return _opened_by_zones(path, zones)
    return _opened_by_meshio(path) if _is_for_meshio(path) else _opened_by_vtk(path, arrays)


def _vtk_reader(path: Path) -> Any:
    """The reader of a file by VTK, which has read the file's header. Raises what is wrong with it."""
    pyvista = import_pyvista()
    if path.suffix in (".exo", ".ex2") and not _head(path, 4).startswith((b"CDF", b"\x89HDF")):
        raise ValueError("neither netCDF nor HDF5")  # The library of Exodus prints a page.
    if path.suffix == ".xdmf" and (gone := [file.name for file in _named_in(path) if not file.is_file()]):
        raise ValueError(f"it names {gone[0]}, which is not there")  # The library of XDMF prints a page, too.
    with raising_what_vtk_says():
        # VTK finds a case's folder by the file that every case has.
        if path.name == "polyMesh":
            reader = pyvista.OpenFOAMReader(path.parent.parent / "system/controlDict")
        elif path.suffix.lower() in TECPLOT:
            if _head(path, 4) == b"#!TD":
                raise ValueError("a binary file of Tecplot, which only Tecplot reads")
            reader = pyvista.TecplotReader(path)
        else:
            reader = pyvista.get_reader(path)
        if isinstance(reader, pyvista.OpenFOAMReader):
            reader.cell_to_point_creation = False
            reader.enable_all_patch_arrays()
        if hasattr(reader.reader, "SetApplyDisplacements"):
            reader.reader.SetApplyDisplacements(False)  # else VTK gives the positions of the deformed body
        if isinstance(reader, pyvista.XdmfReader) and reader.number_grids > 1:
            reader.reader.SetGridStatus("mesh", 0)  # to which the steps of meshio and FEniCS refer
        if not _is_list(reader):
            reader.reader.UpdateInformation()
    return reader


def _is_list(reader: Any) -> bool:
    """Whether a reader is pyvista's own of a list of files, which it reads in Python."""
    pyvista = import_pyvista()
    return isinstance(reader, pyvista.PVDReader | pyvista.SeriesReader)


def _times(reader: Any) -> list[float]:
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline as Pipeline

    if _is_list(reader):
        return list(reader.time_values)
    about = reader.reader.GetOutputInformation(0)
    return list(about.Get(Pipeline.TIME_STEPS())) if about.Has(Pipeline.TIME_STEPS()) else []


def _opened_by_vtk(path: Path, arrays: set[str] | None) -> _Opened:
    reader = _vtk_reader(path)
    times = _times(reader)

    def mesh(place: int) -> Any:
        time = times[place] if times else None
        if _is_list(reader):
            reader.set_active_time_value(time)
            with raising_what_vtk_says():
                return reader.read()
        if arrays is not None:
            _choose_arrays(reader, arrays)
        return output_of(reader, time)

    return _Opened(times, mesh)


def _opened_by_zones(path: Path, zones: list[float | None]) -> _Opened:
    """A Tecplot file whose zones have times: a step has the zones of its time, and those without one."""
    times = sorted({time for time in zones if time is not None})

    def mesh(place: int) -> Any:
        found = output_of(_vtk_reader(path))
        if found.n_blocks != len(zones):
            raise ValueError(f"VTK reads {found.n_blocks} of its {len(zones)} zones")
        own = import_pyvista().MultiBlock()
        for index, time in enumerate(zones):
            if time in (None, times[place]):
                own.append(found[index], found.get_block_name(index))
        return own

    return _Opened(times, mesh)


def _is_for_meshio(path: Path) -> bool:
    """meshio reads what VTK does not; of XDMF, whose steps it does not read, the files without."""
    if path.suffix.lower() == ".xdmf":
        grids = ElementTree.parse(path).iter("Grid")
        return not any(grid.get("CollectionType") == "Temporal" for grid in grids)
    return path.suffix.lower() in MESHIO_SUFFIXES


def _opened_by_meshio(path: Path) -> _Opened:
    found = _by_meshio(path)
    found.cell_sets, found.point_sets = {}, {}  # groups, whose numbers in Gmsh's files are not all of cells
    times = _times_in_names(found)

    def mesh(place: int) -> Any:
        for data in (found.point_data, found.cell_data) if times else ():
            for name, matched in [(name, MED_STEP.match(name)) for name in data]:
                if matched and float(matched[2]) == times[place]:
                    data[matched[1]] = data[name]
                if matched:
                    del data[name]
        return import_pyvista().from_meshio(found)

    return _Opened(times, mesh)


def _by_meshio(path: Path) -> Any:
    """meshio ends the program on files that it cannot read."""
    import meshio

    with contextlib.redirect_stdout(io.StringIO()) as said, contextlib.redirect_stderr(said):
        try:
            return meshio.read(path)
        except SystemExit:
            raise ValueError(" ".join(said.getvalue().split()) or "not a file that meshio reads") from None


def _times_in_names(mesh: Any) -> list[float]:
    """The times of a .med, which meshio puts into the names of its arrays."""
    found = (MED_STEP.match(name) for name in (*mesh.point_data, *mesh.cell_data))
    return sorted({float(match[2]) for match in found if match})


def _from_arrays(path: Path) -> Any:
    pyvista = import_pyvista()
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        cloud = pyvista.PointSet(arrays.pop("points"))
        for name, values in arrays.items():
            cloud.point_data[name] = values
    except Exception as error:  # NumPy and pyvista raise what their parsers meet
        expected = "`points` (N, 3) and arrays with as many rows"
        raise RequestError(
            "case-file-unreadable", f"{path} cannot be read", seen=one_line(error), expected=expected
        ) from None
    return cloud


def _choose_arrays(reader: Any, arrays: set[str]) -> None:
    for kind in ("cell", "point"):
        if hasattr(reader, f"{kind}_array_names") and hasattr(reader, f"disable_all_{kind}_arrays"):
            getattr(reader, f"disable_all_{kind}_arrays")()
            for name in set(getattr(reader, f"{kind}_array_names")) & arrays:
                getattr(reader, f"enable_{kind}_array")(name)


def _blocks(mesh: Any, name: str) -> Iterator[Block]:
    if not hasattr(mesh, "n_blocks"):
        if hasattr(mesh, "dimensions"):  # images and grids whose cells follow from their points
            mesh = mesh.cast_to_unstructured_grid()
        if mesh is not None:
            yield Block(name, mesh)
        return
    for index in range(mesh.n_blocks):
        yield from _blocks(mesh[index], mesh.get_block_name(index) or f"block_{index}")


def is_surface(mesh: Any) -> bool:
    """Whether a mesh is made of faces: PolyData with polygons, or a grid whose cells are all flat."""
    if hasattr(mesh, "n_strips"):
        return bool(mesh.GetNumberOfPolys() or mesh.n_strips)
    kinds = set(np.unique(mesh.celltypes).tolist()) if hasattr(mesh, "celltypes") else {12}
    return bool(kinds) and kinds <= {5, 6, 7, 8, 9, 22, 23, 28}


def begins_as_tecplot(head: bytes) -> bool:
    """Whether the first line of a file, comments aside, is one of Tecplot's text."""
    lines = (line.strip().upper() for line in head.splitlines())
    return next((line for line in lines if line and not line.startswith(b"#")), b"").startswith(FIRST_WORDS)


def times_of_zones(path: Path) -> list[float | None]:
    """Returns the time of each zone of a file, None where a zone has none. ValueError: a time is not a number."""
    times: list[float | None] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for found in ZONE_OR_TIME.finditer(text):
            if found[1] is None:
                times.append(None)
            elif times:
                times[-1] = float(found[1].upper().replace(b"D", b"E"))
    return times

"""Read the meshes of a file at one step; the file may have any format that VTK, meshio or noether reads."""

import contextlib
import json
import math
import mmap
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from glob import escape, glob
from html import unescape
from pathlib import Path
from shlex import quote
from types import SimpleNamespace
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np

from noether.common.errors import NoetherError, RequestError, one_line
from noether.common.processes import EndedBySignal
from noether.physics.cases import openfoam
from noether.physics.cases.case_map import AtTime, Step
from noether.physics.cases.cells import GHOST_TYPE, LEFT, Block
from noether.physics.cases.decks import DECKS, MED_STEP, read_by_meshio
from noether.physics.cases.frd import FrdFile
from noether.physics.cases.mesh_files import Unfit, import_pyvista, output_of, raising_what_vtk_says
from noether.physics.cases.tables import is_cloud, read_cloud

SHAPES = (".stl", ".obj", ".ply")
EXODUS, ENSIGHT, XDMF = (".exo", ".ex2", ".e", ".g"), (".case", ".encas"), (".xdmf", ".xmf")
BARE = (".pvtp", ".pvts", *XDMF)
"""Formats that are read with VTK alone, because pyvista does not read them or mistakes them for files with steps."""
PIECES = (".pvtu", ".pvtp", ".pvti", ".pvtr", ".pvts", ".vtm", ".vtpd", *XDMF, *ENSIGHT)
"""Formats of mesh files that list other files; all listed files are needed."""
STEPS = (".pvd", ".series")
"""Formats of files that list a file for each step; some listed files may be missing."""
SUFFIXES = (
    *PIECES, *STEPS, ".vtp", ".vtu", ".vtk", ".vti", ".vtr", ".vts", ".vtkhdf", *EXODUS, *SHAPES, ".cgns", ".foam",
    ".plt", ".tec", *DECKS, ".med", ".frd", ".npz",
)  # fmt: skip
NAMED = re.compile(
    r"""(?:file|Source)\s*=\s*["']([^"']+)|"name"\s*:\s*"([^"]+)"|(?<![^<>"'\n:])([^<>"'\n:]+\.h(?:5|df5?)):/"""
)
OF_ENSIGHT = re.compile(
    r"^\s*(model|measured|match|boundary|rigid_body|[a-z ]+ per (?:measured )?(?:node|element)):(.*)$", re.M | re.I
)
WORDS = re.compile(r'"([^"]*)"|(\S+)')
OF_PLY = {
    *("x", "y", "z", "nx", "ny", "nz", "red", "green", "blue", "alpha", "u", "v", "s", "t", "texture_u", "texture_v"),
}
"""Vertex properties that VTK itself reads from a .ply file."""
TYPES_OF_PLY = {
    "char": "i1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4", "uint": "u4", "float": "f4",
    "double": "f8", "int8": "i1", "uint8": "u1", "int16": "i2", "uint16": "u2", "int32": "i4", "uint32": "u4",
    "float32": "f4", "float64": "f8",
}  # fmt: skip
OTHERS = {b"version https://git-lfs": "a pointer of Git LFS (git lfs pull fetches the file)",
          b"<!doctype html": "a web page", b"<html": "a web page"}  # fmt: skip
"""What a file may contain in place of a mesh, {first bytes: description}."""
SOLIDS = "STLSolidLabeling"
BY_CONTENT = (".csv", ".dat")
"""Suffixes of files that may hold a mesh or only numbers: `is_mesh_inside` finds out which."""
TECPLOT = (".plt", ".tec", ".dat")
FIRST_WORDS = (b"TITLE", b"FILETYPE", b"VARIABLES", b"ZONE")
ZONE_OR_TIME = re.compile(rb"^[ \t]*ZONE\b|\bSOLUTIONTIME[ \t]*=[ \t]*([-+.\dED]+)", re.MULTILINE | re.IGNORECASE)


class _Opened(NamedTuple):
    """The times of a file's steps, and a function that reads the mesh of the step with a given index."""

    times: list[float]
    mesh: Callable[[int], Any]


def read_blocks(
    path: Path, arrays: set[str] | None = None, step: Step = "last", coordinates: Sequence[str] = ()
) -> list[Block]:
    """Read every mesh of a file at a step; arrays: the names of arrays to read (None: all).

    coordinates: as for `read_cloud`. RequestError: the file is missing or unreadable, or has no points or no such step.
    """
    return read_times_and_blocks(path, arrays, step, coordinates)[1]


def read_times(path: Path) -> list[float]:
    """Return the times of a file's steps, in order; [] if the file has no times. RequestError as for `read_blocks`."""
    with _refusing(path):
        return _opened(path).times


def read_times_and_blocks(
    path: Path, arrays: set[str] | None = None, step: Step = "last", coordinates: Sequence[str] = ()
) -> tuple[list[float], list[Block]]:
    """Open a file once, and return the results of both `read_times` and `read_blocks`."""
    with _refusing(path):
        opened = _opened(path, arrays, coordinates)
        mesh = opened.mesh(chosen(opened.times, step, path))
    blocks = _named_apart([(names, block) for names, block in _blocks(mesh, ()) if block.n_points])
    if not blocks:
        raise RequestError(
            "case-file-without-points", f"{path} holds no points", seen="an empty mesh", expected="a complete file"
        )
    return opened.times, blocks


def files_behind(path: Path, depth: int = 4) -> list[Path]:
    """Return the files of a mesh: those in an OpenFOAM case's folder, or a file and the files that it lists, if any.

    depth: the maximum number of levels at which a list may name other lists, as a .vtm.series does.
    """
    if path.name == openfoam.MESH:  # the fields are in other folders of the case
        return sorted(openfoam.folder_of(path).rglob("*"))
    if path.suffix.lower() not in (*PIECES, *STEPS) or not depth or not path.is_file():
        return [path]
    return [path, *(behind for file in _named_in(path) if file.is_file() for behind in files_behind(file, depth - 1))]


def _named_in(path: Path) -> list[Path]:
    text = path.read_text(errors="replace")
    if path.suffix.lower() not in ENSIGHT:
        return sorted({path.parent / unescape(name.strip()) for names in NAMED.findall(text) for name in names if name})
    found: set[Path] = set()
    for kind, rest in OF_ENSIGHT.findall(text):  # [time set] [file set] [array name] file; * is the step
        words = [quoted or word for quoted, word in WORDS.findall(rest) if word != "change_coords_only"]
        for name in words[-3:-1] if "complex" in kind.lower() else words[-1:]:  # if complex, a frequency is last
            pattern = "*".join(map(escape, re.split(r"\*+", str(path.parent / name))))
            found |= {*map(Path, glob(pattern))} or {path.parent / name}
    return sorted(found)


def is_mesh_inside(path: Path) -> bool:
    """Return whether a file with a suffix in BY_CONTENT is a mesh: a CSV with coordinates, or a .dat of Tecplot."""
    if (suffix := path.suffix.lower()) != ".dat":
        return suffix == ".csv" and is_cloud(path)
    lines = (line.strip().upper() for line in _head(path, 4096).splitlines())
    return next((line for line in lines if line and not line.startswith(b"#")), b"").startswith(FIRST_WORDS)


def chosen(times: Sequence[float | None], step: Step, path: Path | str) -> int:
    """Return the index in `times` of a step; a single time fits any step. RequestError: there is no such step."""
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
        expected=f"last, each, a number from 0 to {len(times) - 1}, or {{time: T}} with the time of a step",
        fix="step: last      (or step: {time: T}, in the map)",
    )


@contextlib.contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Raise RequestError if the file is missing or has an unknown format, or if reading it in the context fails."""
    if not path.exists() or (path.name != openfoam.MESH and path.suffix.lower() not in (*SUFFIXES, *BY_CONTENT)):
        seen = "no such file" if not path.exists() else f"the suffix {path.suffix!r}"
        raise RequestError("case-file-unreadable", f"{path} cannot be read", seen=seen,
                           expected=", ".join((*SUFFIXES, *BY_CONTENT)) + " or constant/polyMesh",
                           fix=openfoam.line_for(path))  # fmt: skip
    try:
        head = _head(path, 100).lstrip().lower() if path.is_file() else b"-"
        if other := next(
            (words for start, words in OTHERS.items() if head.startswith(start)), "" if head else "an empty file"
        ):
            raise Unfit(f"{other}, not a mesh")
        yield
    except (NoetherError, EndedBySignal):
        raise
    except (Exception, SystemExit) as error:  # a parser may raise any error on bytes of another format
        raise unreadable(path, error) from None


def unreadable(path: Path, error: BaseException) -> RequestError:
    """Return the error for an unreadable file; if a library gave the reason, the error names the library."""
    suffix = path.suffix.lower()
    is_own = isinstance(error, Unfit) or suffix in (".frd", ".npz", ".csv")
    reader = "" if is_own else "meshio's" if suffix in (*DECKS, ".med") else "VTK's"
    said = f"{reader} reader of {suffix or 'OpenFOAM'} failed: " if reader else ""
    hint = f"open {path.name} in ParaView, and save it as .vtu or .vtp"
    if path.name == openfoam.MESH:
        hint = f"checkMesh -case {quote(str(openfoam.folder_of(path)))}"
    if suffix == ".msh" and b"$MeshFormat\n4" in _head(path, 100).replace(b"\r", b""):
        hint = f"gmsh -0 -save_all -format msh22 {path.name} -o {path.stem}-22.msh      (MSH 2.2, or Mesh.SaveAll = 1)"
    return RequestError("case-file-unreadable", f"{path} cannot be read",
                        seen=said + one_line(error),
                        expected="a complete file" if reader else "a file that can be read completely",
                        fix=hint if reader else "")  # fmt: skip


def _head(path: Path, size: int) -> bytes:
    with path.open("rb") as file:
        return file.read(size)


def _opened(path: Path, arrays: set[str] | None = None, coordinates: Sequence[str] = ()) -> _Opened:
    suffix = path.suffix.lower()
    if suffix in PIECES and (gone := [own for own in _named_in(path) if not own.is_file()]):
        raise Unfit(f"it names {gone[0].name}, which is missing")  # VTK would ignore the missing file.
    if suffix in STEPS:
        return _opened_by_steps(path, arrays)
    if read := {".npz": _from_arrays, ".stl": _by_solids, ".ply": _by_ply}.get(suffix):
        return _Opened([], lambda place: read(path))
    if suffix == ".csv":
        return _Opened([], lambda place: read_cloud(path, coordinates))
    if suffix == ".frd":
        results = FrdFile(path)
        return _Opened(results.times, results.mesh)
    if suffix in TECPLOT and set(zones := times_of_zones(path)) - {None}:
        return _opened_by_zones(path, zones)
    if suffix in (*DECKS, ".med"):
        return _opened_by_meshio(path)
    return _opened_by_vtk(path, arrays)


def _vtk_reader(path: Path) -> Any:
    """Return VTK's reader of a file after it has read the header. Unfit, ValueError, ParseError: the file is broken."""
    pyvista, suffix = import_pyvista(), path.suffix.lower()
    if suffix in EXODUS and not _head(path, 4).startswith((b"CDF", b"\x89HDF")):
        raise Unfit("neither netCDF nor HDF5")  # The Exodus library would print a page of errors.
    with raising_what_vtk_says():
        # VTK finds the folder of an OpenFOAM case by the path of its controlDict.
        if path.name == openfoam.MESH:
            if not (control := openfoam.folder_of(path) / "system/controlDict").is_file():
                raise Unfit("its case has no system/controlDict, by which VTK finds the times")
            reader = pyvista.OpenFOAMReader(control)
        elif suffix in BARE:
            ElementTree.parse(path)  # raises errors that the XDMF library would only print
            from vtkmodules.vtkIOXdmf2 import vtkXdmfReader
            from vtkmodules.vtkIOXML import vtkXMLPPolyDataReader, vtkXMLPStructuredGridReader

            parallel = {".pvtp": vtkXMLPPolyDataReader, ".pvts": vtkXMLPStructuredGridReader}
            reader = SimpleNamespace(reader=parallel.get(suffix, vtkXdmfReader)())
            reader.reader.SetFileName(str(path))
        elif suffix in TECPLOT:
            if _head(path, 4) == b"#!TD":
                raise Unfit("a binary Tecplot file, which only Tecplot reads")
            reader = pyvista.TecplotReader(path)
        else:
            reader = pyvista.get_reader(path, force_ext=EXODUS[0] if suffix in EXODUS else suffix)
        if isinstance(reader, pyvista.OpenFOAMReader):
            reader.cell_to_point_creation = False
            reader.enable_all_patch_arrays()
        if hasattr(reader.reader, "SetApplyDisplacements"):
            reader.reader.SetApplyDisplacements(False)  # otherwise VTK returns deformed positions
        reader.reader.UpdateInformation()
        if suffix in XDMF and _times(reader) and ElementTree.parse(path).find("./Domain/Grid[@Name='mesh'][Topology]"):
            reader.reader.SetGridStatus("mesh", 0)  # not a result: the grid to which meshio's and FEniCS' steps refer
            reader.reader.UpdateInformation()
    return reader


def _times(reader: Any) -> list[float]:
    from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline as Pipeline

    about = reader.reader.GetOutputInformation(0)
    return list(about.Get(Pipeline.TIME_STEPS())) if about.Has(Pipeline.TIME_STEPS()) else []


def _opened_by_vtk(path: Path, arrays: set[str] | None) -> _Opened:
    reader = _vtk_reader(path)
    times = _times(reader)

    def mesh(place: int) -> Any:
        if arrays is not None:
            _choose_arrays(reader, arrays)
        found = output_of(reader, times[place] if times else None)
        return found[path.parent.name] if openfoam.is_region(path) else found

    return _Opened(times, mesh)


def _opened_by_steps(path: Path, arrays: set[str] | None) -> _Opened:
    """Open a list of the files for each step, as ParaView writes it: .pvd (XML) or .series (JSON)."""
    steps = _files_of_steps(path)

    def mesh(place: int) -> Any:
        own = import_pyvista().MultiBlock()
        for name in steps[times[place]]:
            if not (file := path.parent / name).is_file():
                raise Unfit(f"it names {name}, which is missing")
            opened = _opened(file, arrays)
            own.append(opened.mesh(len(opened.times) - 1))
        return own

    times = sorted(steps)
    return _Opened(times, mesh)


def _files_of_steps(path: Path) -> dict[float, list[str]]:
    steps: dict[float, list[str]] = {}
    if path.suffix.lower() == ".pvd":
        listed = [(own.get("timestep") or 0, own.attrib["file"]) for own in ElementTree.parse(path).iter("DataSet")]
    else:
        listed = [(own["time"], own["name"]) for own in json.loads(path.read_text())["files"]]
    for time, name in listed:
        steps.setdefault(float(time), []).append(name)
    if not steps:
        raise Unfit("it lists no file")
    return steps


def results_elsewhere(path: Path) -> str:
    """Describe results that the last step of a mesh lacks but another step or folder has; "" if there are none."""
    if path.suffix.lower() not in STEPS:
        return openfoam.elsewhere(path)
    with contextlib.suppress(Exception):  # A broken list is reported when the mesh is read.
        counts = {time: len(names) for time, names in _files_of_steps(path).items()}
        full = max(counts, key=lambda time: (counts[time], time))
        if counts[max(counts)] < counts[full]:
            return (f"the last step lists {counts[max(counts)]} files, but an earlier step lists {counts[full]}; "
                    f"to read that step, set step: {{time: {full:g}}}")  # fmt: skip
    return ""


def _opened_by_zones(path: Path, zones: list[float | None]) -> _Opened:
    """Open a Tecplot file with times: each step consists of the zones with its time and of all zones without a time."""
    times = sorted({time for time in zones if time is not None})

    def mesh(place: int) -> Any:
        found = output_of(_vtk_reader(path))
        if found.n_blocks != len(zones):
            raise Unfit(f"VTK reads {found.n_blocks} of its {len(zones)} zones")
        own = import_pyvista().MultiBlock()
        for index, time in enumerate(zones):
            if time in (None, times[place]):
                own.append(found[index], found.get_block_name(index))
        return own

    return _Opened(times, mesh)


def _opened_by_meshio(path: Path) -> _Opened:
    found, left = read_by_meshio(path)
    steps = (MED_STEP.match(name) for name in (*found.point_data, *found.cell_data))
    times = sorted({float(step[2]) for step in steps if step})

    def mesh(place: int) -> Any:
        for data in (found.point_data, found.cell_data) if times else ():
            for name, matched in [(name, MED_STEP.match(name)) for name in data]:
                if matched and float(matched[2]) == times[place]:
                    data[matched[1]] = data[name]
                if matched:
                    del data[name]
        made = import_pyvista().from_meshio(found)
        if left:
            made.field_data[LEFT] = [f"{count} {what}" for what, count in left.items()]
        return made

    return _Opened(times, mesh)


def _by_ply(path: Path) -> Any:
    """Read a .ply file, including the vertex values that VTK drops (G. Turk, 1994, "The PLY Polygon File Format")."""
    mesh = output_of(import_pyvista().PLYReader(path))
    head = _head(path, 65_536).partition(b"end_header")[0]
    elements: list[tuple[str, int, dict[str, str]]] = []
    for words in map(str.split, head.decode(errors="replace").splitlines()):
        if words[:1] == ["element"]:
            elements.append((words[1], int(words[2]), {}))
        elif words[:1] == ["property"]:
            elements[-1][2][words[-1]] = words[1]
    if others := [f"{count} {kind}s" for kind, count, _ in elements if kind not in ("vertex", "face")]:
        mesh.field_data[LEFT] = others
    for kind, count, properties in (own for own in elements if own[0] in ("vertex", "face")):
        own = [name for name, of in properties.items() if of in TYPES_OF_PLY and name not in OF_PLY]
        if own and (kind == "face" or elements[0][0] != kind or "list" in properties.values()):
            raise Unfit(f"values of each {kind} ({', '.join(own)}): from a .ply, only values of vertices are read")
        elif own:
            body = path.read_bytes().partition(b"end_header")[2].partition(b"\n")[2]
            form = "<" if b"little" in head else ">"
            types = np.dtype([(name, form + TYPES_OF_PLY[of]) for name, of in properties.items()])
            if b"format ascii" in head:
                lines = body.split(b"\n", count)[:count]
                table = np.array([tuple(line.split()) for line in lines], [(name, "f8") for name in properties])
            else:
                table = np.frombuffer(body, types, count)
            for name in own:
                mesh.point_data[name] = np.ascontiguousarray(table[name]).astype(types[name].newbyteorder("="))
    return mesh


def _by_solids(path: Path) -> Any:
    """Read an .stl file. If it has several solids, each becomes a block with the solid's name or index."""
    pyvista = import_pyvista()
    reader = pyvista.STLReader(path)
    reader.reader.ScalarTagsOn()
    mesh = output_of(reader)
    names = (reader.reader.GetHeader() or "").split("\n")
    labels = np.asarray(mesh.cell_data[SOLIDS], int) if SOLIDS in mesh.cell_data else np.zeros(mesh.n_cells, int)
    mesh.clear_data()
    if len(parts := np.unique(labels)) < 2:
        return mesh
    solids = pyvista.MultiBlock()
    for part in parts:
        name = (names[part].strip() if len(names) == len(parts) else "") or f"solid_{part}"
        own = mesh.extract_cells(labels == part).extract_surface(
            pass_pointid=False, pass_cellid=False, algorithm="dataset_surface"
        )
        own.clear_data()
        solids.append(own, name if name not in names[:part] else f"{name}_{part}")
    return solids


def _from_arrays(path: Path) -> Any:
    pyvista = import_pyvista()
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        cloud = pyvista.PointSet(arrays.pop("points"))
        for name, values in arrays.items():
            cloud.point_data[name] = values
    except Exception as error:  # NumPy's and pyvista's parsers raise errors of many types
        expected = "`points` (N, 3), and arrays that also have N rows"
        raise RequestError(
            "case-file-unreadable", f"{path} cannot be read", seen=one_line(error), expected=expected
        ) from None
    return cloud


def _choose_arrays(reader: Any, arrays: set[str]) -> None:
    for kind in ("cell", "point"):
        if hasattr(reader, f"{kind}_array_names") and hasattr(reader, f"disable_all_{kind}_arrays"):
            getattr(reader, f"disable_all_{kind}_arrays")()
            for name in set(getattr(reader, f"{kind}_array_names")) & (arrays | {GHOST_TYPE}):
                getattr(reader, f"enable_{kind}_array")(name)


def _blocks(mesh: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if hasattr(mesh, "n_partitions"):
        mesh = import_pyvista().MultiBlock(list(mesh))
    if hasattr(mesh, "n_blocks"):
        for index in range(mesh.n_blocks):
            yield from _blocks(mesh[index], (*names, mesh.get_block_name(index) or f"block_{index}"))
    elif mesh is not None:
        # Images and structured grids become unstructured grids.
        yield names, mesh.cast_to_unstructured_grid() if hasattr(mesh, "dimensions") else mesh


def _named_apart(meshes: Sequence[tuple[tuple[str, ...], Any]]) -> list[Block]:
    """Return the meshes as blocks. Blocks of the same name get the names of their parent blocks as prefixes."""
    own = Counter(names[-1:] for names, _ in meshes)
    blocks: dict[str, Block] = {}
    for names, mesh in meshes:
        name = "/".join(names[-1:] if own[names[-1:]] == 1 else names)
        name = name if name not in blocks else f"{name}_{len(blocks)}"
        blocks[name] = Block.of(name, mesh)
    return list(blocks.values())


def times_of_zones(path: Path) -> list[float | None]:
    """Return the time of each zone of a Tecplot file, None for untimed zones. ValueError: a time is not a number."""
    times: list[float | None] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for found in ZONE_OR_TIME.finditer(text):
            if found[1] is None:
                times.append(None)
            elif times:
                times[-1] = float(found[1].upper().replace(b"D", b"E"))
    return times

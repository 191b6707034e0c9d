"""The folder of an OpenFOAM case: its meshes, the times with results, and results that lie elsewhere.

constant/polyMesh is the mesh of a case, constant/REGION/polyMesh that of each region; processor0, processor1, … hold
the parts of a decomposed case (OpenFOAM User Guide, "Running applications in parallel").
"""

import re
from pathlib import Path
from shlex import quote

MESH = "polyMesh"
TIME, PROCESSOR = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?$"), re.compile(r"processors?\d+(_\d+-\d+)?$")


def folder_of(mesh: Path) -> Path:
    """Return the folder of the case that a mesh is of."""
    return mesh.parents[2 if is_region(mesh) else 1]


def is_region(mesh: Path) -> bool:
    """Whether a mesh is that of one region of several."""
    return mesh.name == MESH and mesh.parent.name != "constant"


def meshes_in(folder: Path) -> list[Path]:
    """Return the meshes of a case in `constant`: of its regions, or the one; of a decomposed case where it will be."""
    constant = folder / "constant"
    found = sorted(path for path in (constant / MESH, *constant.glob(f"*/{MESH}")) if path.is_dir())
    return found or ([constant / MESH] if _processors(folder) else [])


def line_for(mesh: Path) -> str:
    """Return the line that makes a decomposed case readable; "" if a mesh is of none."""
    folder = folder_of(mesh) if mesh.name == MESH else mesh
    return f"reconstructParMesh -constant -case {quote(str(folder))}" if _processors(folder) else ""


def elsewhere(mesh: Path) -> str:
    """Say which results of a case are newer than the last time that is read, or that this one has none; or ""."""
    if mesh.name != MESH:
        return ""
    folder, region = folder_of(mesh), mesh.parent.name if is_region(mesh) else ""
    times, parts = _times(folder, region), _processors(folder)
    last = max(times, default=0.0)
    if (newest := max((time for part in parts for time in _times(part, region)), default=0.0)) > last:
        return (f"processor folders ({len(parts)}) have results of time {newest:g}, newer than {last:g} here: "
                "reconstructPar -newTimes, in the folder of the case")  # fmt: skip
    filled = [time for time, fields in times.items() if fields]
    if times and not times[last] and filled:
        return f"its last time, {last:g}, has no fields, and {max(filled):g} has: step: {{time: {max(filled):g}}}"
    return ""


def _processors(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("processor*") if PROCESSOR.match(path.name) and path.is_dir())


def _times(folder: Path, region: str) -> dict[float, list[str]]:
    """Return the names of the fields at each time."""
    return {float(path.name): [own.name for own in (path / region).glob("*") if own.is_file()]
            for path in folder.iterdir() if TIME.match(path.name) and path.is_dir()}  # fmt: skip

"""Find the meshes and the times in an OpenFOAM case's folder, and results that are not at its last time.

A case's mesh is constant/polyMesh; a region's mesh is constant/REGION/polyMesh. The parts of a decomposed case are in
processor0, processor1, … (OpenFOAM User Guide, "Running applications in parallel").
"""

import re
from pathlib import Path
from shlex import quote

MESH = "polyMesh"
TIME, PROCESSOR = re.compile(r"\d+(\.\d+)?(e[-+]?\d+)?$"), re.compile(r"processors?\d+(_\d+-\d+)?$")


def folder_of(mesh: Path) -> Path:
    """Return the folder of the case to which a mesh belongs."""
    return mesh.parents[2 if is_region(mesh) else 1]


def is_region(mesh: Path) -> bool:
    """Return whether a mesh belongs to one of several regions."""
    return mesh.name == MESH and mesh.parent.name != "constant"


def meshes_in(folder: Path) -> list[Path]:
    """Return the meshes in a case's folder `constant`; if a decomposed case has none there, return the usual path."""
    constant = folder / "constant"
    found = sorted(path for path in (constant / MESH, *constant.glob(f"*/{MESH}")) if path.is_dir())
    return found or ([constant / MESH] if _processors(folder) else [])


def line_for(mesh: Path) -> str:
    """Return the command that makes the mesh of a decomposed case readable; "" if the case is not decomposed."""
    folder = folder_of(mesh) if mesh.name == MESH else mesh
    return f"reconstructParMesh -constant -case {quote(str(folder))}" if _processors(folder) else ""


def elsewhere(mesh: Path) -> str:
    """Describe newer results in processor folders, or older results if the last time has no fields; else return ""."""
    if mesh.name != MESH:
        return ""
    folder, region = folder_of(mesh), mesh.parent.name if is_region(mesh) else ""
    times, parts = _times(folder), _processors(folder)
    last = max(times, default=0.0)
    if (newest := max((time for part in parts for time in _times(part)), default=0.0)) > last:
        return (f"processor folders ({len(parts)}) have results of time {newest:g}, but the case ends at {last:g}: "
                "run reconstructPar -newTimes in the folder of the case")  # fmt: skip
    filled = (time for time in sorted(times, reverse=True) if any(map(Path.is_file, (times[time] / region).glob("*"))))
    if (time := next(filled, last)) != last:
        return f"its last time, {last:g}, has no fields, but {time:g} has: step: {{time: {time:g}}}"
    return ""


def _processors(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("processor*") if PROCESSOR.match(path.name) and path.is_dir())


def _times(folder: Path) -> dict[float, Path]:
    """Return the folders that are named by a time, {time: folder}."""
    return {float(path.name): path for path in folder.iterdir() if TIME.match(path.name) and path.is_dir()}

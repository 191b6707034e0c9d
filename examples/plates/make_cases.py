#!/usr/bin/env python3
"""Make VTU files of plates with a hole, solved by CalculiX in mm, N and MPa: make_cases.py --cases 86 --jobs 2 [OUT].

Needs gmsh and ccx on the PATH (Debian: apt-get install gmsh calculix-ccx), and `pip install ccx2paraview`. Each case is
made in OUT/.making and renamed to OUT/plate_0000 (etc.) once complete, so the command can be stopped and restarted.
"""

import argparse
import json
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from scipy.stats import qmc

YOUNGS_MODULUS, POISSON_RATIO = 210_000.0, 0.3  # of steel, in MPa and without unit
RANGES = {
    "length [mm]": (110.0, 160.0),
    "width [mm]": (45.0, 70.0),
    "thickness [mm]": (4.0, 8.0),
    "hole_x [mm]": (0.3, 0.7),
    "hole_y [mm]": (0.4, 0.6),
    "hole_radius [mm]": (0.1, 0.22),
    "stretch [mm]": (0.02, 0.1),
    "shear [mm]": (-0.1, 0.1),
}
"""The range of each parameter; hole_x is a fraction of the length, hole_y and hole_radius of the width."""
CONVERTING = threading.Lock()
"""Held during a conversion: ccx2paraview keeps a mesh's node numbers in a global, so two at once would mix plates."""


@dataclass(frozen=True)
class Plate:
    """The parameters of one case, in mm."""

    length: float
    width: float
    thickness: float
    hole_x: float
    hole_y: float
    hole_radius: float
    stretch: float
    shear: float

    def table(self) -> dict[str, float]:
        """Return the parameters, keyed by the names with units of parameters.json."""
        return dict(zip(RANGES, asdict(self).values(), strict=True))


class CaseFailed(Exception):
    """A program that makes a case failed."""


def draw_plates(count: int, seed: int) -> list[Plate]:
    """Return the first `count` plates of a Sobol sequence; more plates begin with the same ones."""
    drawn = qmc.scale(qmc.Sobol(len(RANGES), seed=seed).random(count), *zip(*RANGES.values(), strict=True))
    plates = (Plate(*map(float, row)) for row in drawn)
    return [
        Plate(p.length, p.width, p.thickness, p.hole_x * p.length, p.hole_y * p.width, p.hole_radius * p.width,
              p.stretch, p.shear)
        for p in plates
    ]  # fmt: skip


def geometry(plate: Plate, size: float) -> str:
    """Return the geometry in gmsh's language, with elements of at most `size` mm and smaller ones at the hole."""
    x, y, r, depth = plate.hole_x, plate.hole_y, plate.hole_radius, plate.thickness
    end = plate.length
    return f"""
SetFactory("OpenCASCADE");
Box(1) = {{0, 0, 0, {plate.length}, {plate.width}, {depth}}};
Cylinder(2) = {{{x}, {y}, -1, 0, 0, {depth + 2}, {r}}};
BooleanDifference(3) = {{ Volume{{1}}; Delete; }}{{ Volume{{2}}; Delete; }};
e = 0.001;
Physical Volume("plate") = {{3}};
Physical Surface("clamped") = {{Surface In BoundingBox{{-e, -e, -e, e, {plate.width}+e, {depth}+e}}}};
Physical Surface("pulled") = {{Surface In BoundingBox{{{end}-e, -e, -e, {end}+e, {plate.width}+e, {depth}+e}}}};
Mesh.MeshSizeMax = {size};
Mesh.MeshSizeFromCurvature = 24;
Mesh.ElementOrder = 2;
Mesh.SecondOrderLinear = 0;
Mesh.SaveGroupsOfNodes = 1;
"""


def analysis(plate: Plate) -> str:
    """Return CalculiX's input, which includes the mesh, a clamp on the left, and a moving rigid grip on the right."""
    return f"""
*INCLUDE, INPUT=solid.inp
*NODE, NSET=GRIP
999998, {plate.length}, {plate.width / 2}, {plate.thickness / 2}
999999, {plate.length}, {plate.width / 2}, {plate.thickness / 2}
*MATERIAL, NAME=STEEL
*ELASTIC
{YOUNGS_MODULUS}, {POISSON_RATIO}
*SOLID SECTION, ELSET=plate, MATERIAL=STEEL
*RIGID BODY, NSET=pulled, REF NODE=999998, ROT NODE=999999
*BOUNDARY
clamped, 1, 3
*STEP
*STATIC
*BOUNDARY
999998, 1, 1, {plate.stretch}
999998, 2, 2, {plate.shear}
999998, 3, 3, 0
999999, 1, 3, 0
*NODE FILE
U
*EL FILE
S
*NODE PRINT, NSET=clamped, TOTALS=ONLY
RF
*END STEP
"""


def run(folder: Path, *command: str) -> None:
    """Run a program in the folder, and log its output there; raise CaseFailed if it fails."""
    log = folder / f"log.{command[0]}"
    with log.open("wb") as out:
        code = subprocess.run(command, cwd=folder, stdout=out, stderr=subprocess.STDOUT, timeout=600).returncode
    if code:
        raise CaseFailed(f"{command[0]} ended with {code}: {log.read_text(errors='replace').strip()[-200:]}")


def only_solid_elements(text: str) -> str:
    """Return gmsh's mesh without its surface elements, which CalculiX would read as shell elements."""
    kept, keep = [], True
    for line in text.splitlines():
        if line.startswith("*"):
            keep = not (line.upper().startswith("*ELEMENT") and "C3D" not in line.upper())
        if keep:
            kept.append(line)
    return "\n".join(kept) + "\n"


def reaction(folder: Path) -> dict[str, float]:
    """Return the total force on the clamped end, in N."""
    rows = [line.split() for line in (folder / "plate.dat").read_text().splitlines() if line.strip()]
    x, y, z = (float(word) for word in rows[-1][-3:])
    return {"reaction_x [N]": x, "reaction_y [N]": y, "reaction_z [N]": z}


def make_case(out: Path, name: str, plate: Plate, size: float) -> str:
    """Mesh and solve one case; return a line that describes it. Raise CaseFailed if a program fails."""
    from ccx2paraview import Converter

    began, folder = time.monotonic(), out / ".making" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / "plate.geo").write_text(geometry(plate, size))
    run(folder, "gmsh", "-3", "-format", "inp", "-o", "mesh.inp", "plate.geo")
    (folder / "solid.inp").write_text(only_solid_elements((folder / "mesh.inp").read_text()))
    (folder / "plate.inp").write_text(analysis(plate))
    run(folder, "ccx", "plate")
    forces = reaction(folder)
    with CONVERTING:
        Converter(str(folder / "plate.frd"), ["vtu"]).run()
    made = sorted(folder.glob("plate*.vtu"))[-1]
    (folder / "parameters.json").write_text(json.dumps({**plate.table(), **forces}, indent=2) + "\n")
    made.rename(folder / "result.vtu")
    for path in folder.iterdir():
        if path.name not in {"result.vtu", "parameters.json"}:
            path.unlink()
    folder.rename(out / name)
    return f"{name}: {forces['reaction_x [N]']:.0f} N, {time.monotonic() - began:.1f} s"


def main() -> int:
    """Make the missing cases; return 1 if a case failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=Path("plates"), metavar="OUT", help="default: plates")
    parser.add_argument("--cases", type=int, default=86, help="number of cases (default 86)")
    parser.add_argument("--jobs", type=int, default=1, help="number of cases in parallel (default 1)")
    parser.add_argument("--size", type=float, default=9.0, help="element size in mm (default 9)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the parameters")
    wanted = parser.parse_args()
    if missing := [program for program in ("gmsh", "ccx") if shutil.which(program) is None]:
        print(f"not on the PATH: {', '.join(missing)} (Debian: apt-get install gmsh calculix-ccx)")
        return 2
    plates = {f"plate_{index:04d}": plate for index, plate in enumerate(draw_plates(wanted.cases, wanted.seed))}
    to_make = [name for name in plates if not (wanted.out / name).is_dir()]
    print(f"{wanted.out}: {len(plates) - len(to_make)} cases exist, {len(to_make)} to make", flush=True)
    failed = 0
    with ThreadPoolExecutor(wanted.jobs) as jobs:
        made = {jobs.submit(make_case, wanted.out, name, plates[name], wanted.size): name for name in to_make}
        for done, job in enumerate(as_completed(made), 1):
            try:
                print(f"{done} of {len(to_make)}  {job.result()}", flush=True)
            except CaseFailed as reason:
                failed += 1
                print(f"{done} of {len(to_make)}  {made[job]}: FAILED, {reason}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

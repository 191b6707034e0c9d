#!/usr/bin/env python3
"""Mesh and solve cases of a parametric bluff body with OpenFOAM: make_cases.py --cases 200 --jobs 2 [OUT].

Needs OpenFOAM on the PATH (Debian: apt-get install openfoam) and Python with NumPy and SciPy. Each case is made in
OUT/.making and renamed to OUT/case_0000 (and so on) once complete, so the command can be stopped and restarted at any
time. A case that does not converge is kept, with its logs, in OUT/failed.
"""

import argparse
import json
import math
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from pathlib import Path

from body import Body, draw_bodies, write_stl

TEMPLATE = Path(__file__).parent / "case"
MESHING = (("blockMesh",), ("surfaceFeatureExtract",), ("snappyHexMesh", "-overwrite"))
STEPS = (*MESHING, ("potentialFoam",), ("simpleFoam",))
DEBIAN_PROJECT = "/usr/share/openfoam"
DENSITY, VISCOSITY = 1.225, 1.5e-5  # of air at 15 °C, in kg/m³ and m²/s
TURBULENCE_INTENSITY, TURBULENCE_LENGTH = 0.01, 0.1  # without unit, and in m
# How often cells of 0.1 m are halved: at the body's surface, in the box around body and wake, and in its inner box.
MESHES = {"tiny": (2, 0, 1), "coarse": (3, 1, 2), "fine": (4, 2, 3)}
STEADY_SPREAD = 0.02  # by default, drag may vary by this share of its mean over the last hundred iterations
KEPT = ("parameters.json", "postProcessing", "constant", "system")


class CaseFailed(Exception):
    """A step of a case has failed, or the drag has not settled."""


def case_values(body: Body, mesh: str, iterations: int) -> dict[str, str]:
    """Return the values that the dictionaries of a case include: of the body, of the mesh, and derived values."""
    inlet_k = 1.5 * (TURBULENCE_INTENSITY * body.wind_speed) ** 2
    surface, near, close = MESHES[mesh]
    numbers = {
        "iterations": iterations,
        "density": DENSITY,
        "viscosity": VISCOSITY,
        "windSpeed": body.wind_speed,
        "bodyLength": body.length,
        "frontalArea": body.frontal_area,
        "inletK": inlet_k,
        "inletOmega": math.sqrt(inlet_k) / (0.09**0.25 * TURBULENCE_LENGTH),
        "surfaceLevel": surface,
        "nearLevel": near,
        "closeLevel": close,
    }
    values = {name: f"{value:.9g}" for name, value in numbers.items()}
    return {**values, "windVelocity": f"({body.wind_speed:.9g} 0 0)"}


def write_case(folder: Path, body: Body, mesh: str, iterations: int) -> None:
    """Write the files of a case: the template, the values that it includes, and the body's surface and parameters."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(TEMPLATE, folder)
    lines = (f"{name} {value};" for name, value in case_values(body, mesh, iterations).items())
    (folder / "system/caseValues").write_text("\n".join(lines) + "\n")
    (folder / "constant/triSurface").mkdir()
    write_stl(body, folder / "constant/triSurface/body.stl")
    about = {**asdict(body), "frontal_area": body.frontal_area, "density": DENSITY}
    (folder / "parameters.json").write_text(json.dumps(about, indent=2) + "\n")


def run_case(folder: Path) -> None:
    """Run all steps in the folder, with a log for each step; raise CaseFailed if a step fails."""
    environment = dict(os.environ)
    if "WM_PROJECT_DIR" not in environment and Path(DEBIAN_PROJECT).is_dir():
        environment["WM_PROJECT_DIR"] = DEBIAN_PROJECT
    for step in STEPS:
        log = folder / f"log.{step[0]}"
        with log.open("wb") as out:
            ended = subprocess.run(step, cwd=folder, env=environment, stdout=out, stderr=subprocess.STDOUT)
        if ended.returncode:
            raise CaseFailed(f"{step[0]} ended with {ended.returncode}: {_last_line(log)}")


def _last_line(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1] if lines else "nothing in its log"


def check_settled(folder: Path, allowed: float) -> float:
    """Return the drag coefficient; raise CaseFailed if it is NaN, or varies by more than the share `allowed`."""
    lines = (folder / "postProcessing/forceCoeffs/0/coefficient.dat").read_text().splitlines()
    drag = [float(line.split()[1]) for line in lines if line.strip() and not line.startswith("#")][-100:]
    mean = sum(drag) / len(drag)
    spread = (max(drag) - min(drag)) / max(abs(mean), 1e-9)
    if not spread <= allowed:
        raise CaseFailed(f"drag still varies by {spread:.1%} of its mean {mean:.4g} over the last 100 iterations")
    return drag[-1]


def keep_results(folder: Path, iterations: int) -> None:
    """Delete the files that nobody needs afterwards: initial fields, logs, and intermediate files of the mesh."""
    kept = {*KEPT, str(iterations)}
    for path in folder.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for name in ("extendedFeatureEdgeMesh", "triSurface/body.eMesh"):
        path = folder / "constant" / name
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
    fields = {"U", "p", "k", "omega", "nut", "wallShearStress"}
    for path in (folder / str(iterations)).iterdir():
        if path.name not in fields:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def make_case(out: Path, name: str, body: Body, wanted: argparse.Namespace) -> str:
    """Make one case with the options of the command line; return a line that describes it."""
    began, making = time.monotonic(), out / ".making" / name
    try:
        write_case(making, body, wanted.mesh, wanted.iterations)
        run_case(making)
        drag = check_settled(making, wanted.spread)
        keep_results(making, wanted.iterations)
        making.rename(out / name)
        return f"{name}: drag {drag:.4f}, {time.monotonic() - began:.0f} s"
    except CaseFailed as reason:
        failed = out / "failed" / name
        failed.parent.mkdir(exist_ok=True)
        shutil.rmtree(failed, ignore_errors=True)
        making.rename(failed)
        (failed / "reason.txt").write_text(f"{reason}\n")
        return f"{name}: FAILED, {reason} ({failed})"


def main() -> int:
    """Make the missing cases; return 1 if any of them could not be made."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=Path("cases"), metavar="OUT", help="default: cases")
    parser.add_argument("--cases", type=int, default=200, help="number of cases (default 200)")
    parser.add_argument("--jobs", type=int, default=1, help="number of cases in parallel (default 1)")
    parser.add_argument("--mesh", choices=MESHES, default="coarse", help="tiny (for tests), coarse or fine")
    parser.add_argument("--iterations", type=int, default=300, help="iterations of the solver (default 300)")
    parser.add_argument("--spread", type=float, default=STEADY_SPREAD, help="allowed variation of drag (default 0.02)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the parameters")
    parser.add_argument("--retry", action="store_true", help="retry failed cases")
    wanted = parser.parse_args()
    missing = [step[0] for step in STEPS if shutil.which(step[0]) is None]
    if missing:
        print(f"OpenFOAM is not on the PATH: no {', '.join(missing)} (Debian: apt-get install openfoam)")
        return 2
    (wanted.out / ".making").mkdir(parents=True, exist_ok=True)
    bodies = {f"case_{index:04d}": body for index, body in enumerate(draw_bodies(wanted.cases, wanted.seed))}
    there = {name for name in bodies if (wanted.out / name).is_dir()}
    failed = {name for name in bodies if (wanted.out / "failed" / name).is_dir()}
    to_make = [name for name in bodies if name not in there and (wanted.retry or name not in failed)]
    print(f"{wanted.out}: {len(there)} cases exist, {len(failed)} have failed, {len(to_make)} to make", flush=True)
    with ThreadPoolExecutor(wanted.jobs) as jobs:
        made = [jobs.submit(make_case, wanted.out, name, bodies[name], wanted) for name in to_make]
        for done, job in enumerate(as_completed(made), 1):
            print(f"{done} of {len(to_make)}  {job.result()}", flush=True)
    not_made = [name for name in bodies if not (wanted.out / name).is_dir()]
    print(f"{wanted.out}: {len(bodies) - len(not_made)} of {len(bodies)} cases exist", flush=True)
    return 1 if not_made else 0


if __name__ == "__main__":
    sys.exit(main())

"""Every command in README and docs works, and the commands that `make train` prints can be typed unchanged."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, TIME_LIMIT
from documented import SMALL, commands, make_workplace
from processes import run_to_end
from settings_reference import settings_reference

from noether.physics.cars.ellipsoid import BOX_HIGH, BOX_LOW
from noether.physics.cases.surface_mesh import Holes, find_holes
from noether.physics.predict.shape_input import read_shape

__all__ = ["SMALL", "commands"]
PAGES = {
    "README.md": 10, "docs/launchers.md": 3, "docs/tasks.md": 15, "docs/troubleshooting.md": 3,
    "docs/tutorial.md": 10, "docs/own-classes.md": 2,
}  # fmt: skip
"""The pages whose commands need only this machine, and the minimum number of commands in each."""


@pytest.fixture
def workplace(tmp_path_factory, environ) -> tuple[Path, dict[str, str]]:
    """Return a user's folder, and an environment with `noether` on the PATH."""
    folder = tmp_path_factory.mktemp("user")
    return folder, make_workplace(folder, environ)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("page", "least"), PAGES.items())
def test_the_documented_commands_run(page: str, least: int, workplace) -> None:
    """The commands run in the page's order, in one folder, because later commands use files of earlier ones."""
    folder, environ = workplace
    lines = commands(REPOSITORY / page, "noether", "python")
    assert len(lines) >= least
    for line in lines:
        done = run_to_end(["sh", "-c", line], environ, cwd=folder, limit_s=TIME_LIMIT)
        assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
    if "noether report runs/cars" in lines:
        assert (folder / "runs" / "cars" / "report.html").stat().st_size > 10_000


def test_the_error_in_the_readme_is_what_the_program_says(noether) -> None:
    said = noether("plan", "accelerator=cpu", "devices=2", "trainer.effective_batch_size=63").err
    assert said in (REPOSITORY / "README.md").read_text()


def test_the_reference_of_settings_is_the_schema_s() -> None:
    page = (REPOSITORY / "docs/configuration.md").read_text()
    assert page[page.index("## Top level") :] == settings_reference(), "run `make docs`"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/slurm.md"])
def test_links_lead_to_files(page: str) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", (REPOSITORY / page).read_text()):
        assert ((REPOSITORY / page).parent / target).exists(), target


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("more", "predictor", "error_ratio", "r2", "samples"),
    [
        # The error of the surface pressure relative to that of a simple predictor, and R² of the lift.
        pytest.param("+experiment/ellipsoid=quick", "mean_field", 0.6, 0.6, 30, id="a-minute-of-it"),
        pytest.param("", "nearest_shape", 0.5, 0.95, 100, id="as-the-readme-says", marks=pytest.mark.nightly),
    ],
)
def test_make_train_reaches_what_the_readme_promises(more, predictor, error_ratio, r2, samples, tmp_path: Path) -> None:
    own = {**os.environ, "OMP_NUM_THREADS": "1"}  # With other tests running, more threads would mostly wait.
    done = run_to_end(["make", "train", f"ARGS={more} output_path={tmp_path} run_id=made"], own, limit_s=1700)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((tmp_path / "made" / "result.json").read_text())
    error = result["metrics"]["surface_pressure/relative_l2"]
    assert error < error_ratio * result["baselines"][predictor]["surface_pressure/relative_l2"]
    assert result["metrics"]["lift_coefficient/r2"] >= r2
    assert result["samples"] == samples
    assert (tmp_path / "made" / "report.html").is_file()


def test_the_end_of_make_train_is_three_commands_that_can_be_typed(environ, tmp_path: Path) -> None:
    """`make train` runs in a checkout whose .venv is ready; with these ARGS it prints the help instead of training."""
    (tmp_path / "packages" / "slurm-lint").mkdir(parents=True)
    for name in ("Makefile", "constraints.txt", "pyproject.toml", "packages/slurm-lint/pyproject.toml"):
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for program in ("noether", "python"):
        (tmp_path / ".venv/bin" / program).symlink_to(Path(sys.prefix) / "bin" / program)
    parts = environ["PATH"].split(os.pathsep)
    bare = os.pathsep.join(part for part in parts if Path(sys.prefix) not in Path(part).parents)
    (tmp_path / ".venv/bin/activate").write_text('PATH="$PWD/.venv/bin:$PATH"; export PATH\n')
    (tmp_path / ".venv/.ready").touch()
    # If another make started this test (`make test`), make would also print the folder that it enters.
    variables = {name: value for name, value in environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    variables["PATH"] = bare
    done = run_to_end(["make", "train", "ARGS=--help"], variables, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()[-5:]
    assert "make shell" in head
    activated, *commands = [line.strip() for line in lines]
    assert activated == ". .venv/bin/activate"
    assert [command.split()[0] for command in commands] == ["noether"] * 3
    for command in commands:
        said = run_to_end(["sh", "-c", f"{activated}\n{command} --help"], variables, cwd=tmp_path)
        assert said.returncode == 0, f"{command}\n{said.stderr}"
    shell = subprocess.run(
        ["make", "shell"], cwd=tmp_path, env={**variables, "SHELL": "/bin/sh"}, input="noether --version\n",
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert shell.stdout.startswith("noether "), shell.stderr


def test_the_car_is_what_its_script_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(REPOSITORY / "examples"))
    import make_car

    assert make_car.stl(make_car.car_triangles()) == (REPOSITORY / "examples/car.stl").read_bytes()
    shape = read_shape(REPOSITORY / "examples/car.stl")
    assert find_holes(shape.points, shape.faces).edges == make_car.AROUND
    assert find_holes(shape.points, shape.faces, (BOX_LOW, BOX_HIGH)) == Holes(0, 0, 0.0)

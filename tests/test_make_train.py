"""What `make train` ends with can be typed as it stands, and the car that the README predicts on is there."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY

from noether.physics.cars.ellipsoid import BOX_HIGH, BOX_LOW
from noether.physics.cases.surface_mesh import Holes, find_holes
from noether.physics.predict.shape_input import read_shape


def test_make_train_ends_with_three_commands_that_can_be_typed(environ, tmp_path: Path) -> None:
    """In a checkout whose .venv is ready; the training itself is only planned, by ARGS."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        (tmp_path / name).write_text((REPOSITORY / name).read_text())
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    for program in ("noether", "python"):
        (tmp_path / ".venv/bin" / program).symlink_to(Path(sys.prefix) / "bin" / program)
    bare = os.pathsep.join(
        part for part in environ["PATH"].split(os.pathsep) if Path(sys.prefix) not in Path(part).parents
    )
    activate = 'PATH="$PWD/.venv/bin:$PATH"; export PATH\n'
    (tmp_path / ".venv/bin/activate").write_text(activate)
    (tmp_path / ".venv/.ready").touch()
    # Below another make (`make test`) it would say which folder it enters.
    variables = {name: value for name, value in environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    variables["PATH"] = bare
    done = subprocess.run(
        ["make", "train", "ARGS=--help"], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()[-5:]
    assert "make shell" in head
    activated, *commands = [line.strip() for line in lines]
    assert activated == ". .venv/bin/activate"
    assert [command.split()[0] for command in commands] == ["noether"] * 3
    for command in commands:
        script = f"{activated}\n{command} --help"
        said = subprocess.run(
            ["sh", "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=60
        )
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

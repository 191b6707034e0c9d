"""`noether init` writes a project that can be trained and whose test passes, with only the wheel installed."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import lacking, run_to_end

from noether.project.create import create_here, package_name, template_files


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of programs of a new virtual environment, where a wheel of this checkout is installed.

    A path file makes this environment's packages importable there, except the editable noether; installing the packages
    again would take minutes.
    """
    root = tmp_path_factory.mktemp("fresh")
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", f"--wheel-dir={root}"]
    wheel += [str(REPOSITORY), str(REPOSITORY / "packages" / "slurm-lint")]
    built = subprocess.run(wheel, capture_output=True, text=True, timeout=180, cwd=root)
    if built.returncode:
        lacking(f"the wheel could not be built, which needs hatchling from PyPI: {built.stderr[-300:]}")
    environment = root / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True, timeout=120)
    install = [str(environment / "bin" / "pip"), "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*install, *map(str, root.glob("*.whl"))], check=True, timeout=120)
    (packages,) = environment.glob("lib/python*/site-packages")
    (packages / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return environment / "bin"


def run(program: Path, *words: str, cwd: Path, environ: dict[str, str]) -> str:
    variables = {name: value for name, value in environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    path = f"{program.parent}{os.pathsep}{environ['PATH']}"
    done = run_to_end([str(program), *words], {**variables, "PATH": path}, cwd=cwd, limit_s=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_new_project_trains_and_its_test_passes_in_a_fresh_environment(fresh: Path, environ, tmp_path: Path) -> None:
    where = run(fresh / "python", "-Ic", "import noether; print(noether.__file__)", cwd=tmp_path, environ=environ)
    assert where.startswith(str(fresh.parent)), "noether must come from the wheel, not from this checkout"
    run(fresh / "noether", "init", "heat-rod", cwd=tmp_path, environ=environ)
    project = tmp_path / "heat-rod"
    run(fresh / "noether", "train", "--hp", "settings.yaml", "--dry-run", cwd=project, environ=environ)
    run(fresh / "noether", "train", "--hp", "settings.yaml", "run_id=first", cwd=project, environ=environ)
    result = json.loads((project / "runs" / "first" / "result.json").read_text())
    assert result["metrics"]["rms_error_K"] < 0.05
    assert (project / "runs" / "first" / "report.html").is_file()
    assert "5 passed" in run(fresh / "python", "-m", "pytest", cwd=project, environ=environ)
    words = ("lint", "job.sbatch", "--hp", "settings.yaml", "--json")
    assert json.loads(run(fresh / "noether", *words, cwd=project, environ=environ)) == []
    subprocess.run(["git", "init", "--quiet"], cwd=project, check=True, timeout=60)
    seen = run_to_end(["git", "status", "--short", "-uall"], environ, cwd=project).stdout
    assert ("runs/" in seen, "heat_rod/data.py" in seen) == (False, True), seen


def test_a_dry_run_lists_the_files_that_are_then_written(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    assert create_here("deep/heat-rod", dry_run=True) == 0
    listed = capsys.readouterr().out.splitlines()
    assert list(tmp_path.iterdir()) == []
    create_here("deep/heat-rod", dry_run=False)
    written = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file())
    assert sorted(listed) == written
    assert len(written) == len(list(template_files()))
    assert "deep/heat-rod/heat_rod/data.py" in written
    assert all("my_project" not in path.read_text() for path in tmp_path.rglob("*") if path.is_file())


def test_the_job_is_what_submit_writes(noether, tmp_path: Path) -> None:
    noether("init", "heat-rod", cwd=tmp_path, code=0)
    project, words = tmp_path / "heat-rod", ("submit", "--print", "--hp", "settings.yaml", "run_id=heat-rod")
    printed = noether(*words, cwd=project, code=0).out.replace(f"{sys.executable} -m noether", "noether")
    first = f"# Written by noether {' '.join(words)}. To start it: sbatch job.sbatch"
    lines = ["#!/bin/bash", first, *printed.splitlines()[2:]]
    assert (project / "job.sbatch").read_text().splitlines() == lines, "make it again as its second line says"


@pytest.mark.parametrize(
    ("name", "package"),
    [("heat-rod", "heat_rod"), ("Wing2", "Wing2"), ("my-project-2", "my_project_2"), ("sub/heat", "heat")],
)
def test_names(name: str, package: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert package_name(Path(name)) == package
    create_here(name, dry_run=False)
    assert f"kind: {package}.data.Rods" in (tmp_path / name / "settings.yaml").read_text()
    assert f'name = "{Path(name).name}"' in (tmp_path / name / "pyproject.toml").read_text()


REFUSED = {
    "module-of-python": ("json", "noether init my_json"),
    "installed": ("torch", "noether init my_torch"),
    "folder-of-the-project": ("tests", "noether init my_tests"),
    "letters-of-another-alphabet": ("Wärme", "noether init w_rme"),
    "nothing-left": ("...", "noether init my"),
}


@pytest.mark.parametrize(("name", "fix"), REFUSED.values(), ids=REFUSED)
def test_a_name_that_python_cannot_import_is_refused_and_the_fix_works(name, fix, noether, tmp_path: Path) -> None:
    done = noether("init", name, cwd=tmp_path)
    assert (done.code, f"fix       {fix}" in done.err) == (2, True), done.err
    assert list(tmp_path.iterdir()) == []
    assert noether(*fix.split()[1:], "--dry-run", cwd=tmp_path).code == 0


def test_a_folder_that_is_there_is_left_as_it_is(noether, tmp_path: Path) -> None:
    (tmp_path / "heat").mkdir()
    (tmp_path / "heat_2").write_text("")
    done = noether("init", "heat", cwd=tmp_path)
    assert (done.code, list((tmp_path / "heat").iterdir())) == (2, [])
    assert "fix       noether init heat_3" in done.err


def test_a_place_that_cannot_be_written_is_named(noether, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = noether("init", "file/heat", cwd=tmp_path)
    assert (done.code, "cannot write file/heat" in done.err) == (2, True), done.err
    assert "Traceback" not in done.err

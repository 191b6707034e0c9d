"""The SIF: its own test, its read-only root, ordinary users, isolation from the host, signals and exit codes."""

import json
import os
import signal
import subprocess
import tempfile
from pathlib import Path

import pytest
from conftest import TINY
from processes import run_to_end, wait_for

from images.conftest import ANY_SCRIPT, LONG
from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

pytestmark = pytest.mark.slow

LIMIT_S = 200
Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def run_sif(sif: Path, image_variables: dict[str, str], work: Path):
    """Return a function that runs `apptainer COMMAND SIF WORDS` in the folder `work`, as root or as nobody."""

    def run(command: str, *words: str, as_nobody: bool = False, **variables: str) -> Finished:
        prefix = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if as_nobody else []
        own = {**os.environ, **image_variables, **variables}
        return run_to_end([*prefix, "apptainer", command, str(sif), *words], own, cwd=work, limit_s=LIMIT_S)

    return run


def tiny(name: str, *overrides: str) -> list[str]:
    return ["train", "--hp", "tiny.yaml", f"run_id={name}", *overrides]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return the working directory, which Apptainer mounts and every user can write to."""
    folder = tmp_path / "work"
    folder.mkdir()
    # By default, only this user can enter the folders of the session and of pytest.
    for above in (tmp_path, *(one for one in tmp_path.parents if one.is_relative_to(tempfile.gettempdir()))):
        above.chmod(0o755)
    (folder / "tiny.yaml").write_text(TINY.read_text())
    folder.chmod(0o777)
    return folder


def test_its_own_test_passes_without_a_gpu(run_sif) -> None:
    done = run_sif("test")
    assert done.returncode == 0, done.stderr
    assert "torch" in done.stdout


def test_it_says_how_it_is_used_and_what_it_is(run_sif) -> None:
    assert "srun apptainer exec --nv noether.sif train" in run_sif("run-help").stdout
    assert "noether.lock.sha256" in run_sif("inspect").stdout


def test_an_ordinary_user_trains_with_a_hostile_home(run_sif, work) -> None:
    """Apptainer mounts the host's home, but a torch in ~/.local or on PYTHONPATH must not be imported."""
    if os.geteuid():
        pytest.skip("only root can become another user")
    home = work / "home"
    for folder in (home / ".local/lib/python3.11/site-packages", work / "evil"):
        folder.mkdir(parents=True)
        (folder / "torch.py").write_text("raise SystemExit('the torch of the host was imported')\n")
    variables = {"HOME": str(home), "PYTHONPATH": str(work / "evil"), "XDG_CACHE_HOME": str(work / "cache")}
    done = run_sif("exec", *tiny("cars"), as_nobody=True, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(RunFolder(work / "runs" / "cars").environment.read_text())
    assert found["image"]["digest"].startswith("sha256:")
    assert found["image"]["sif"].endswith(".sif")


def test_any_script_runs_on_two_ranks(run_sif, work) -> None:
    (work / "train.py").write_text(ANY_SCRIPT.read_text())
    done = run_sif("exec", "run", "accelerator=cpu", "devices=2", "train.py")
    assert (done.returncode, done.stdout.count("of 2 on ")) == (0, 2), done.stdout + done.stderr


def test_the_root_is_read_only(run_sif) -> None:
    done = run_sif("exec", "touch", "/opt/noether/new")
    assert done.returncode != 0
    assert "Read-only" in done.stderr


def test_a_signal_reaches_the_trainer(sif, image_variables, work) -> None:
    """Only the process of apptainer gets the signal, as under srun."""
    log = work / "said"
    words = tiny("signalled", *LONG)
    with log.open("w") as file:
        command, environ = ["apptainer", "exec", str(sif), *words], {**os.environ, **image_variables}
        process = subprocess.Popen(command, cwd=work, env=environ, stdout=file, stderr=file)
    try:
        wait_for("an update", lambda: "\nupdate " in log.read_text(), LIMIT_S, log.read_text, process=process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 75, log.read_text()
    finally:
        process.kill()
        process.wait()
    (checkpoint,) = list_checkpoints(work / "runs" / "signalled" / "checkpoints")
    assert checkpoint.damage() is None

"""Training under docker: in a mounted folder, isolated from the host, stopped and resumed, and in a user's project."""

import json
import os
from importlib.metadata import files
from pathlib import Path

import pytest

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

pytest.importorskip("docker")
from images.conftest import ANY_SCRIPT, LONG
from images.containers_of_tests import owners, tiny

pytestmark = pytest.mark.slow


def test_a_run_in_a_mounted_folder_is_the_caller_s_and_is_resumed(containers, work, user, own) -> None:
    """The container has a read-only root, no network, no home, no password entry and a PYTHONPATH that breaks torch."""
    (work / "evil").mkdir()
    (work / "evil" / "torch.py").write_text("raise SystemExit('the PYTHONPATH of the host was used')\n")
    cut_off = {"read_only": True, "network_mode": "none", "cap_drop": ["ALL"]}
    alone = {**own, **cut_off, "environment": {"PYTHONPATH": "/work/evil"}}
    containers.run(*tiny("cars", "trainer.max_updates=4"), **alone, code=0)
    folder = RunFolder(work / "runs" / "cars")
    assert list_checkpoints(folder.checkpoints)[-1].updates == 4
    assert owners(folder.path) == {user}
    again = containers.run(*tiny("cars", "resume=auto", "trainer.max_updates=8"), **alone, code=0)
    assert "resumed cars after update 4" in again.out
    last = list_checkpoints(folder.checkpoints)[-1]
    assert (last.updates, last.damage()) == (8, None)
    environment = json.loads(folder.environment.read_text())
    labels = containers.client.images.get(containers.image).attrs["Config"]["Labels"]
    for found in (environment, last.meta()["provenance"]):
        assert found["lock_sha256"] == labels["noether.lock.sha256"]
        assert found["git_revision"] == labels["org.opencontainers.image.revision"]
        assert found["image"]["flavour"] == labels["noether.flavour"]


def test_any_script_runs_on_two_ranks(containers, own) -> None:
    """The script is a module that Python finds through PYTHONPATH; it gets its arguments."""
    given = {"volumes": {str(ANY_SCRIPT): {"bind": "/site/own.py"}}, "environment": {"PYTHONPATH": "/site"}}
    done = containers.run("run", "accelerator=cpu", "devices=2", "-m", "own", "join", **given, **own, code=0)
    assert done.out.count("of 2 on ") == 2, done.out + done.err


def test_a_signal_reaches_the_trainer_through_tini(containers, work, own) -> None:
    container = containers.start(*tiny("signalled", *LONG), **own)
    containers.wait_for_output(container, "\nupdate ")
    container.kill("SIGTERM")
    ended = containers.wait(container, 60)
    assert ended.code == 75, ended.out + ended.err
    (checkpoint,) = list_checkpoints(work / "runs" / "signalled" / "checkpoints")
    assert checkpoint.damage() is None


def test_docker_s_own_shared_memory_is_too_small_for_loader_workers(containers, work, own) -> None:
    """With docker's default of 64 MiB, torch's workers would die of "Bus error" during the first epoch."""
    refused = containers.run(*tiny("small", "num_workers=2"), **own, code=2)
    assert "64 MiB" in refused.err
    assert "--shm-size=" in refused.err
    assert "--ipc=host" in refused.err
    assert not (work / "runs").exists()
    containers.run(*tiny("large", "num_workers=2"), shm_size="1g", **own, code=0)


@pytest.mark.parametrize(
    ("limit", "words", "code", "said"),
    [
        pytest.param({"pids_limit": 12}, ("devices=2",), 2, "may have 12 of them", id="too-few-processes"),
        pytest.param({"nano_cpus": 500_000_000}, (), 0, "a quota of 0.5", id="half-a-cpu"),
    ],
)
def test_limits_of_a_container_are_read(limit: dict, words: tuple[str, ...], code: int, said: str, containers) -> None:
    done = containers.run("plan", *words, **limit, code=code)
    assert said in done.out + done.err
    assert "Traceback" not in done.err


def test_a_folder_that_cannot_be_written_offers_no_mount_of_the_host(containers, tmp_path) -> None:
    done = containers.run(*tiny("odd", train=("train",)), work=tmp_path / "odd")
    assert done.code != 0
    assert "--user" in done.err
    assert "-v /" not in done.err


PYTEST = ("pytest", "pluggy", "iniconfig", "packaging", "pygments")
"""Packages in pure Python, which are copied from this environment because the image lacks them."""


def lend_pytest(folder: Path) -> None:
    """Copy pytest and its dependencies into a folder."""
    for package in PYTEST:
        for file in files(package) or ():
            if file.suffix in (".py", ".json") or file.name in ("METADATA", "entry_points.txt"):
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(Path(str(file.locate())).read_bytes())


def test_a_project_is_made_trained_and_tested_in_the_image(containers, built, work, own, tmp_path) -> None:
    containers.run("init", "heat-rod", **own, code=0)
    project = work / "heat-rod"
    dockerfile = project / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("FROM noether", f"FROM {containers.image}"))
    name = "noether-own-project"
    built(project, name)
    lend_pytest(tmp_path / "lent")
    os.chmod(tmp_path, 0o755)
    other = type(containers)(containers.client, name)
    try:
        other.run(limit_s=400, **own, code=0)
        (result,) = (work / "runs").glob("*/result.json")
        assert json.loads(result.read_text())["metrics"]["rms_error_K"] < 0.05
        tested = other.run(
            *("-m", "pytest", "-p", "no:cacheprovider", "-q"),
            entrypoint=["/opt/venv/bin/python3"],
            **own,
            working_dir="/work/heat-rod",
            environment={"PYTHONPATH": "/lent"},
            volumes={str(tmp_path / "lent"): {"bind": "/lent", "mode": "ro"}},
            limit_s=400,
        )
        assert "5 passed" in tested.out, tested.out + tested.err
    finally:
        other.remove()

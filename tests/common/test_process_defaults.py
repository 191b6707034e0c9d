"""noether sets default environment variables in the image and in a scheduler's job, and nowhere else."""

import os
from pathlib import Path

import pytest
from conftest import TINY

from noether.common.process_defaults import CACHES, own_folder, process_defaults

HERE = "/tmp/noether-4321"
FACTS = {"in_image": False, "home_is_writable": True, "user": "user4321", "own_folder": lambda: Path(HERE)}
INSIDE = {**FACTS, "in_image": True}
ON_THE_NODE = {name: f"{HERE}/{leaf}" for name, leaf in CACHES.items()}

CASES = {
    "a-user-s-machine-is-left-alone": ({"HOME": "/home/a"}, FACTS, {}),
    "caches-of-a-job-are-on-the-node": ({"SLURM_JOB_ID": "17", "USER": "a"}, FACTS, ON_THE_NODE),
    "what-the-user-says-stays": ({"SLURM_JOB_ID": "17", **dict.fromkeys(CACHES, "/mine")}, FACTS, {}),
    "no-home-and-no-name": ({"HOME": "/"}, {**INSIDE, "home_is_writable": False},
        {**ON_THE_NODE, "HOME": f"{HERE}/home", "USER": "user4321", "PYTHONNOUSERSITE": "1"}),
    "the-host-s-python-path-goes": (
        {"PYTHONPATH": "/evil", "PYTHONHOME": "", "USER": "a", **dict.fromkeys(CACHES, "/mine")}, INSIDE,
        {"PYTHONPATH": None, "PYTHONHOME": None, "PYTHONNOUSERSITE": "1"}),
}  # fmt: skip


@pytest.mark.parametrize(("environ", "facts", "changes"), CASES.values(), ids=CASES.keys())
def test_changes(environ, facts, changes) -> None:
    assert process_defaults(environ, **facts) == changes


def _a_link(folder: Path) -> None:
    (folder.parent / "elsewhere").mkdir()
    folder.symlink_to("elsewhere")


def _of_another_user(folder: Path) -> None:
    folder.mkdir()
    os.chown(folder, 65534, 65534)


def _open_to_all(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)


TRAPS = {
    "a file": (Path.touch, "is not a folder"),
    "a link": (_a_link, "is a link"),
    "a link to nowhere": (lambda folder: folder.symlink_to("nowhere"), "is a link"),
    "another user's": (_of_another_user, "belongs to another user"),
    "open to all": (_open_to_all, "can be written by others"),
}


@pytest.mark.parametrize(("lay", "why"), TRAPS.values(), ids=TRAPS.keys())
def test_a_folder_that_others_laid_is_not_used(lay, why, tmp_path, capsys) -> None:
    """It would be dangerous, because torch runs the files in a compiler's cache."""
    trap = tmp_path / f"noether-{os.getuid()}"
    if lay is _of_another_user and os.getuid():
        pytest.skip("only root can give a folder away")
    lay(trap)
    taken = own_folder(tmp_path)
    assert taken != trap
    assert taken.parent == tmp_path
    assert (taken.lstat().st_mode & 0o777, taken.lstat().st_uid) == (0o700, os.getuid())
    said = capsys.readouterr().err
    assert f"{trap} {why}" in said
    assert str(taken) in said


def test_the_next_job_finds_what_the_last_one_has_compiled(tmp_path, capsys) -> None:
    folder = own_folder(tmp_path)
    assert folder.lstat().st_mode & 0o777 == 0o700
    assert own_folder(tmp_path) == folder
    assert capsys.readouterr().err == ""


def test_a_folder_in_the_way_is_said_once_and_the_command_goes_on(noether, tmp_path) -> None:
    (tmp_path / f"noether-{os.getuid()}").write_text("in the way")
    done = noether("plan", "--help", TMPDIR=str(tmp_path), SLURM_JOB_ID="17", code=0)
    assert done.err.count("is not a folder; caches are in ") == 1


@pytest.mark.slow
def test_ranks_and_loaders_meet_beside_a_temporary_folder_too_long_for_sockets(noether, tmp_path) -> None:
    long = tmp_path / ("x" * 110)
    long.mkdir()
    words = ("--hp", str(TINY), f"output_path={tmp_path}", "accelerator=cpu", "devices=2", "num_workers=1")
    assert "on 2 ranks" in noether("train", *words, TMPDIR=str(long), timeout=100, code=0).out

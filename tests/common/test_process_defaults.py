"""Which variables are set where nobody has: in the image, in a scheduler's job, and nowhere else."""

import os
from pathlib import Path

import pytest

from noether.common.process_defaults import CACHES, process_defaults

FACTS = {
    "in_image": False,
    "user_id": 4321,
    "user_name": None,
    "temporary": Path("/tmp"),
    "home_is_writable": True,
}
INSIDE = {**FACTS, "in_image": True}
HERE = "/tmp/noether-4321"

CASES = {
    "a-user-s-machine-is-left-alone": ({"HOME": "/home/a"}, FACTS, {}),
    "caches-of-a-job-are-on-the-node": (
        {"SLURM_JOB_ID": "17", "USER": "a"},
        FACTS,
        {name: f"{HERE}-17/{leaf}" for name, leaf in CACHES.items()},
    ),
    "what-the-user-says-stays": (
        {"SLURM_JOB_ID": "17", **dict.fromkeys(CACHES, "/mine")},
        FACTS,
        {},
    ),
    "no-home-and-no-name": (
        {"HOME": "/"},
        {**INSIDE, "home_is_writable": False},
        {
            **{name: f"{HERE}/{leaf}" for name, leaf in CACHES.items()},
            "HOME": f"{HERE}/home",
            "USER": "user4321",
            "PYTHONNOUSERSITE": "1",
        },
    ),
    "the-host-s-python-path-goes": (
        {"PYTHONPATH": "/evil", "PYTHONHOME": "", "USER": "a", **dict.fromkeys(CACHES, "/mine")},
        INSIDE,
        {"PYTHONPATH": None, "PYTHONHOME": None, "PYTHONNOUSERSITE": "1"},
    ),
}


@pytest.mark.parametrize(("environ", "facts", "changes"), CASES.values(), ids=CASES.keys())
def test_changes(environ, facts, changes) -> None:
    assert process_defaults(environ, **facts) == changes


def test_a_place_that_cannot_be_made_is_a_refusal(noether, tmp_path) -> None:
    (tmp_path / f"noether-{os.getuid()}-17").write_text("in the way")
    done = noether("plan", "--help", TMPDIR=str(tmp_path), SLURM_JOB_ID="17")
    assert done.code == 2
    assert "no place for caches" in done.err
    assert "Traceback" not in done.err

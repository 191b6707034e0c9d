"""Select the tests of `make test-machines`, and distribute tests to the workers in groups and in order.

The tests of a file run on one worker, so that the file's fixtures are set up once. Files form a group if they share
something larger, such as a cluster, or must not run at the same time. Slow groups come first. The third worker begins
with the tests on Slurm, which take longest and mostly wait. The tests on images are the last slow group, because the
images are being built in the meantime. Fast files fill the remaining time of each worker.
"""

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pytest

SESSION = "NOETHER_TEST_SESSION"
"""The environment variable with the session's process id; the session's workers inherit it."""
GROUPS = {
    "tests/launch/slurm/": "one Slurm cluster",
    "tests/images/test_apptainer_slurm.py": "Slurm and the images",
    "tests/images/test_containers_page.py": "Slurm and the images",
    "tests/launch/processes/": "launchers, whose ranks meet at port 29500",
}
"""The group of a test, by the beginning of the test's id. Each file that is not listed is a group of its own."""
MACHINES = (
    # Tests that need a cluster, images, MPI, solvers or a browser.
    "tests/launch/slurm/",
    "tests/images/",
    "tests/launch/kubernetes/",
    "tests/launch/processes/test_other_launchers.py",
    "tests/physics/cases/test_openfoam.py",
    "tests/docs/test_site.py::test_the_pages_open_as_files",
    "tests/watch/test_browser.py",
    # Tests with many failures of hosts, networks and disks.
    "tests/doctor/test_doctor.py",
    "tests/faults/",
    "tests/launch/detect/test_nvidia_driver.py::test_a_driver_that_hangs",
    "tests/training/test_resume.py::test_a_run_of_three_ranks",
    "tests/launch/processes/test_who_failed.py",
    # Tests that run whole programs for long: documented commands, a new environment, a compiler, benchmarks, services.
    "tests/physics/predict/test_export_alone.py",
    "tests/physics/predict/test_intervals.py::test_several",
    "tests/physics/predict/test_intervals.py::test_the_notebook",
    "tests/physics/predict/test_sensitivity.py::test_the_command",
    "tests/physics/predict/test_predict.py::test_the_test_split",
    "tests/project/test_create.py",
    "tests/cli/test_python.py::test_the_page",
    "tests/physics/models/test_point_models.py::test_exports",
    "tests/physics/fields/test_own_fields.py::test_a_model",
    "tests/test_benchmarks.py",
    "tests/test_guide.py",
    "tests/test_workflows.py::test_no_job",
    "tests/test_readme.py::test_make_train",
    "tests/test_readme.py::test_the_documented",
    "tests/runs/tracking/test_services.py",
    "tests/training/test_tensorboard_page.py",
    "tests/training/test_digits_and_examples.py",
    "tests/training/test_complex_weights.py::test_a_public",
    "tests/training/test_equivalence.py::test_a_compiled",
    "tests/training/test_published_models.py",
)
"""Beginnings of the ids of tests that need a cluster, images, solvers or a browser, or take minutes."""
EVERYWHERE = (
    "tests/faults/test_harness.py::test_killed",
    "tests/faults/test_disks.py::test_on_a_full_disk",
    "tests/faults/test_disks.py::test_a_flipped_byte",
    "tests/faults/test_harness.py::test_a_forged",
    "tests/faults/test_harness.py::test_a_mutated_file",
    "tests/test_workflows.py::test_no_job_fails_for_what_its_runner_lacks[cpu images]",
)
"""Tests of MACHINES that `make test` runs too: a kill, a full disk, damage, forged files, a job of CI."""
BEFORE_SLURM = 2
"""The number of groups that come before the tests on Slurm: the first two workers begin with one group each."""


def in_every_push(cases: Mapping[str, Any] | Collection[str], *names: str) -> list[Any]:
    """Return a pytest parameter for each case, with the case's name as id; cases that are not in `names` are nightly.

    A case is a tuple of arguments, or a single argument. If `cases` has only names, the name is the argument.
    """
    table = cases if isinstance(cases, Mapping) else {name: name for name in cases}
    assert set(names) <= set(table), names
    return [
        pytest.param(*(case if isinstance(case, tuple) else (case,)), id=name, marks=_nightly_unless(name in names))
        for name, case in table.items()
    ]


def _nightly_unless(is_pushed: bool) -> list[pytest.MarkDecorator]:
    return [] if is_pushed else [pytest.mark.nightly]


def group_of(nodeid: str) -> str:
    """Return the group of a test; one worker runs all tests of a group in order."""
    file = nodeid.partition("::")[0]
    return next((group for start, group in GROUPS.items() if file.startswith(start)), file)


def needs_machines(nodeid: str) -> bool:
    """Return whether a test belongs to `make test-machines` and not to `make test`."""
    return nodeid.startswith(MACHINES) and not nodeid.startswith(EVERYWHERE)


def in_order(tests: Sequence[tuple[str, bool]]) -> list[str]:
    """Return the ids of tests in the order in which the workers get them; `tests`: pairs (id, whether it is slow)."""
    slow = Counter(group_of(nodeid) for nodeid, is_slow in tests if is_slow)
    groups: dict[str, list[str]] = {}
    for nodeid, _ in tests:
        groups.setdefault(group_of(nodeid), []).append(nodeid)

    def rank(group: str) -> tuple[bool, bool, int]:
        return not slow[group], groups[group][0].startswith("tests/images/"), -slow[group]

    slurm = GROUPS["tests/launch/slurm/"]
    order = sorted((group for group in groups if group != slurm), key=rank)
    if slurm in groups:
        order.insert(BEFORE_SLURM, slurm)
    return [nodeid for group in order for nodeid in groups[group]]


def session_number() -> int:
    """Return the process id of this process's test session."""
    return int(os.environ.setdefault(SESSION, str(os.getpid())))


def reorder(items: list[pytest.Item]) -> None:
    by_id = {item.nodeid: item for item in items}
    items[:] = [by_id[nodeid] for nodeid in in_order([(i.nodeid, _is_slow(i)) for i in items])]


def _is_slow(item: pytest.Item) -> bool:
    return item.get_closest_marker("slow") is not None

"""How the workers of `make test` share the tests."""

import pytest
from conftest import REPOSITORY
from sharing import EVERYWHERE, GROUPS, MACHINES, group_of, in_order, needs_machines

SLURM = GROUPS["tests/slurm/"]


@pytest.mark.parametrize(
    ("nodeid", "group"),
    [
        ("tests/data/test_order.py::test_a[x::y]", "tests/data/test_order.py"),
        ("tests/slurm/test_submit.py::test_a", SLURM),
        ("tests/slurm/test_requeue.py::test_b", SLURM),
        ("tests/images/test_image.py::test_a", "tests/images/test_image.py"),
    ],
    ids=["a-file", "slurm", "slurm-of-another-file", "images"],
)
def test_what_stays_on_one_worker(nodeid: str, group: str) -> None:
    assert group_of(nodeid) == group


def test_slow_files_first_slurm_on_the_third_worker_and_fast_files_last() -> None:
    tests = [
        ("tests/data/test_b.py::one", False),
        ("tests/images/test_image.py::one", True),
        ("tests/models/test_c.py::one", True),
        ("tests/models/test_c.py::two", False),
        ("tests/slurm/test_submit.py::one", True),
        ("tests/training/test_d.py::one", True),
        ("tests/training/test_d.py::two", True),
        ("tests/slurm/test_a.py::one", False),
        ("tests/data/test_e.py::one", False),
    ]
    assert in_order(tests) == [
        "tests/training/test_d.py::one",
        "tests/training/test_d.py::two",
        "tests/models/test_c.py::one",
        "tests/models/test_c.py::two",
        "tests/slurm/test_submit.py::one",
        "tests/slurm/test_a.py::one",
        "tests/images/test_image.py::one",
        "tests/data/test_b.py::one",
        "tests/data/test_e.py::one",
    ]


@pytest.mark.parametrize(
    ("nodeid", "machines"),
    [
        ("tests/slurm/test_submit.py::test_a", True),
        ("tests/data/test_order.py::test_a", False),
        ("tests/faults/test_network.py::test_a", True),
        ("tests/faults/test_kills.py::test_a", False),
        ("tests/test_readme.py::test_links_lead_to_files[README.md]", False),
    ],
)
def test_what_needs_a_cluster_or_minutes_is_told_apart(nodeid: str, machines: bool) -> None:
    assert needs_machines(nodeid) is machines


@pytest.mark.parametrize("beginning", [*MACHINES, *EVERYWHERE])
def test_every_beginning_is_of_tests_that_exist(beginning: str) -> None:
    path, _, function = beginning.partition("[")[0].partition("::")
    assert (REPOSITORY / path).exists()
    assert not function or f"def {function}" in (REPOSITORY / path).read_text()

import pytest

from noether.launch.processes.openmp import SPIN_COUNT, openmp_defaults


@pytest.mark.parametrize(
    ("environ", "added"),
    [
        ({}, {"GOMP_SPINCOUNT": SPIN_COUNT}),
        ({"OMP_WAIT_POLICY": "active"}, {}),
        ({"GOMP_SPINCOUNT": "5"}, {}),
        ({"OMP_NUM_THREADS": "4"}, {"GOMP_SPINCOUNT": SPIN_COUNT}),
    ],
    ids=["nothing-said", "wait-policy-said", "spin-said", "threads-alone"],
)
def test_how_threads_wait_is_set_only_where_the_user_has_not(environ, added) -> None:
    assert openmp_defaults(environ) == added

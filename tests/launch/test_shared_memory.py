"""Loader workers and the size of /dev/shm."""

import pytest

from noether.common.errors import RequestError
from noether.launch.detect.limits import MEBIBYTE, check_shared_memory, shared_memory_size

FITS = {
    "no-workers-need-none": (0, 8, 64 * MEBIBYTE),
    "a-machine-s-own": (8, 8, 32 * 1024 * MEBIBYTE),
    "no-such-file-system": (4, 1, None),
    "just-enough": (4, 1, 128 * MEBIBYTE),
}


@pytest.mark.parametrize(("workers", "ranks", "size"), FITS.values(), ids=FITS.keys())
def test_what_fits_is_let_through(workers, ranks, size) -> None:
    check_shared_memory(workers, ranks, size)


REFUSED = {"docker-s-64-MiB": (1, 1, 64, "1g"), "many-ranks-of-a-node": (8, 8, 1024, "4g")}


@pytest.mark.parametrize(("workers", "ranks", "mebibytes", "flag"), REFUSED.values(), ids=REFUSED.keys())
def test_what_would_die_of_a_bus_error_is_refused_with_the_flag(workers, ranks, mebibytes, flag) -> None:
    with pytest.raises(RequestError) as refusal:
        check_shared_memory(workers, ranks, mebibytes * MEBIBYTE)
    assert f"{mebibytes} MiB" in refusal.value.seen
    assert f"--shm-size={flag}" in refusal.value.fix
    assert "--ipc=host" in refusal.value.fix


def test_the_size_is_the_file_system_s(tmp_path) -> None:
    assert shared_memory_size(tmp_path) > 0
    assert shared_memory_size(tmp_path / "none") is None

"""System limits are raised as far as possible, and a run that exceeds them is refused before it starts."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from processes import lay

from noether.launch.detect.limits import (
    MEBIBYTE,
    check_processes,
    check_shared_memory,
    most_processes,
    refused_processes,
    shared_memory_size,
    why_too_large,
)
from tests.refusal import refusal

RAISED = """
import resource
from noether.launch.detect.limits import raise_limits
resource.setrlimit(resource.RLIMIT_NOFILE, (256, min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])))
raise_limits()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_soft_limit_of_descriptors_is_raised_to_the_hard_one() -> None:
    done = subprocess.run([sys.executable, "-c", RAISED], capture_output=True, text=True, timeout=60, check=True)
    soft, hard = map(int, done.stdout.split())
    assert soft == hard == min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


@pytest.mark.parametrize(
    ("world", "local", "kind", "limits", "words"),
    [
        pytest.param(64, 8, "cuda", [1024, 4096], [], id="fits"),
        pytest.param(600, 8, "cpu", [1024, 4096], ["1295 open files"], id="gloo's mesh"),
        pytest.param(600, 8, "cuda", [1024, 4096], [], id="NCCL has no mesh"),
        pytest.param(8192, 8, "cuda", [4096, None], ["8288 open files"], id="rank 0's store"),
        pytest.param(256, 256, "cpu", [None, 1024], ["2048 processes"], id="processes"),
        pytest.param(65536, 65536, "cpu", [None, None], [], id="no limits"),
    ],
)
def test_a_world_that_does_not_fit_is_said(world, local, kind, limits, words) -> None:
    said = why_too_large(world, local, kind, *limits)
    assert len(said) == len(words)
    assert all(word in line for word, line in zip(words, said, strict=True))


@pytest.mark.parametrize(
    ("files", "most", "refused"),
    [
        pytest.param({"pids.max": "12\n", "pids.events": "max 3\n"}, 12, 3, id="docker run --pids-limit 12"),
        pytest.param({"pids.max": "max\n", "pids.events": "max 0\n"}, None, 0, id="no limit"),
        pytest.param({"pids.max": "99\n", "pod/pids.max": "20\n"}, 20, 0, id="the least of a group and those above"),
        pytest.param({}, None, 0, id="nothing to read"),
    ],
)
def test_how_many_processes_a_container_allows(files, most: int | None, refused: int, tmp_path: Path) -> None:
    group = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    lay(tmp_path, {"proc/self/cgroup": "0::/pod\n", **group})
    assert (most_processes(tmp_path), refused_processes(tmp_path)) == (most, refused)


def test_ranks_that_cannot_start_are_refused() -> None:
    for ranks, most in ((2, 16), (1, 5), (8, None)):
        check_processes(ranks, most)
    for ranks, most in ((2, 12), (4, 27)):
        with refusal("too-few-processes", fix="--pids-limit"):
            check_processes(ranks, most)


@pytest.mark.parametrize(("workers", "ranks", "mebibytes"), [(0, 8, 64), (8, 8, 32 * 1024), (4, 1, None), (4, 1, 128)])
def test_loader_workers_that_fit_in_shared_memory_are_let_through(workers, ranks, mebibytes) -> None:
    """`mebibytes`: the size of /dev/shm; None: there is no /dev/shm."""
    check_shared_memory(workers, ranks, mebibytes and mebibytes * MEBIBYTE)


@pytest.mark.parametrize(("workers", "ranks", "mebibytes", "flag"), [(1, 1, 64, "1g"), (8, 8, 1024, "4g")], ids=str)
def test_what_would_die_of_a_bus_error_is_refused_with_the_flag(workers, ranks, mebibytes, flag) -> None:
    with refusal(seen=f"{mebibytes} MiB", fix=f"--shm-size={flag}") as refused:
        check_shared_memory(workers, ranks, mebibytes * MEBIBYTE)
    assert "--ipc=host" in refused.value.fix


def test_the_size_of_shared_memory_is_the_file_system_s(tmp_path: Path) -> None:
    assert shared_memory_size(tmp_path) > 0
    assert shared_memory_size(tmp_path / "none") is None

"""Limits of the system: raised as far as they go, and a world that does not fit is said before it starts."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from noether.common.errors import RequestError
from noether.launch.detect.limits import Limits, check_processes, most_processes, refused_processes, why_too_large

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
        pytest.param(64, 8, "cuda", Limits(1024, 4096), [], id="fits"),
        pytest.param(600, 8, "cpu", Limits(1024, 4096), ["1295 open files"], id="gloo's mesh"),
        pytest.param(600, 8, "cuda", Limits(1024, 4096), [], id="NCCL has no mesh"),
        pytest.param(8192, 8, "cuda", Limits(4096, None), ["8288 open files"], id="rank 0's store"),
        pytest.param(256, 256, "cpu", Limits(None, 1024), ["2048 processes"], id="processes"),
        pytest.param(65536, 65536, "cpu", Limits(None, None), [], id="no limits"),
    ],
)
def test_a_world_that_does_not_fit_is_said(world, local, kind, limits, words) -> None:
    said = why_too_large(world, local, kind, limits)
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
    for name, text in {
        "proc/self/cgroup": "0::/pod\n",
        **{f"sys/fs/cgroup/{name}": files[name] for name in files},
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert (most_processes(tmp_path), refused_processes(tmp_path)) == (most, refused)


@pytest.mark.parametrize(
    ("ranks", "most", "fits"), [(2, 12, False), (2, 16, True), (4, 27, False), (1, 5, True), (8, None, True)]
)
def test_ranks_that_cannot_start_are_refused(ranks: int, most: int | None, fits: bool) -> None:
    if fits:
        check_processes(ranks, most)
        return
    with pytest.raises(RequestError) as caught:
        check_processes(ranks, most)
    assert caught.value.code == "too-few-processes"
    assert "--pids-limit" in caught.value.fix

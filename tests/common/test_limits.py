"""Limits of the system: raised as far as they go, and a world that does not fit is said before it starts."""

import resource
import subprocess
import sys

import pytest

from noether.common.limits import Limits, why_too_large

RAISED = """
import resource
from noether.common.limits import raise_limits
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

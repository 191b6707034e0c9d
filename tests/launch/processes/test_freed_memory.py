import subprocess
import sys

import pytest

from noether.launch.processes.worker import keep_freed_memory

COUNT_FAULTS = """
import resource, sys
from noether.launch.processes.worker import keep_freed_memory
if sys.argv[1] == "kept" and not keep_freed_memory({}):
    print("other C library")
    sys.exit()
import torch
torch.set_num_threads(1)
def update():
    return [torch.ones(1_000_000) for _ in range(20)]
update(), update()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    update()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(
    "environ",
    [
        {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=1"},
        {"MALLOC_TRIM_THRESHOLD_": "1"},
        {"LD_PRELOAD": "/usr/lib/libjemalloc.so.2"},
        {"LD_PRELOAD": "/usr/lib/libtcmalloc.so.4"},
    ],
    ids=["tunables", "variable", "jemalloc", "tcmalloc"],
)
def test_what_the_user_has_said_about_memory_stays(environ):
    assert not keep_freed_memory(environ)


def test_memory_that_was_freed_is_not_cleared_again():
    counted = {}
    for arm in ("kept", "returned"):
        done = subprocess.run(
            [sys.executable, "-c", COUNT_FAULTS, arm], capture_output=True, text=True, check=True, timeout=120
        )
        counted[arm] = done.stdout.strip()
    if counted["kept"] == "other C library":
        pytest.skip("the C library is not glibc")
    # 20 arrays of 4 MB have 20,000 pages.
    assert int(counted["kept"]) < int(counted["returned"]) / 10

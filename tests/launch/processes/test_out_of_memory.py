"""If the kernel kills a process for lack of memory, the message says so and names the limit to raise."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import run_to_end, wait_for

from noether.launch.processes.out_of_memory import killed_for_memory, no_memory_left

OWN = REPOSITORY / "tests" / "faults" / "own"
GIB = 2**30
V1 = {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n", "memory.limit_in_bytes": f"{4 * GIB}\n"}
V2 = {"memory.events": "low 0\noom 5\noom_kill 2\n", "memory.max": f"{4 * GIB}\n", "memory.peak": f"{3 * GIB}\n"}
GROUPS = {
    "v2": ("0::/job", "job", V2, {"SLURM_JOB_ID": "1"}, 2, "4 GiB", "--mem=6G"),
    "v1": ("4:memory:/job", "memory/job", V1, {"KUBERNETES_SERVICE_HOST": "h"}, 2, "4 GiB", "memory: 6Gi"),
    "v2 in a container": ("0::/", ".", V2, {}, 2, "3 GiB were used", "docker run --memory=6g"),
    "no limit": ("0::/job", "job", {"memory.max": "max\n"}, {}, 0, "this machine, 8 GiB", "max_batch_size"),
}


@pytest.mark.parametrize(("line", "place", "files", "environ", "killed", "seen", "fix"), GROUPS.values(), ids=GROUPS)
def test_what_the_cgroup_says(line, place, files, environ, killed, seen, fix, tmp_path: Path) -> None:
    group = tmp_path / "sys/fs/cgroup" / place
    group.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(f"{line}\n")
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: {8 * 2**20} kB\n")
    for name, text in files.items():
        (group / name).write_text(text)
    error = no_memory_left(environ, tmp_path)
    assert killed_for_memory(tmp_path) == killed
    assert seen in error.seen
    assert fix in error.fix


EATS = """
from slow_lines import Lines
from torch.utils.data import get_worker_info


class Eats(Lines):
    def __init__(self, split, root, count, everywhere):
        super().__init__(split, root, count)
        self.everywhere, self.read, self.kept = everywhere, 0, []

    def __getitem__(self, index):
        self.read += 1
        while self.read > 24 and (self.everywhere or get_worker_info() is not None):
            self.kept.append(b"x" * 30_000_000)
        return super().__getitem__(index)
"""


@pytest.fixture
def group() -> Iterator[Path]:
    """Yield a control group whose memory is limited to 900 MB."""
    root = Path("/sys/fs/cgroup")
    v1 = (root / "memory").is_dir()
    own = (root / "memory" if v1 else root) / f"noether-test-{os.getpid()}"
    try:
        own.mkdir()
        (own / ("memory.limit_in_bytes" if v1 else "memory.max")).write_text("900M")
    except OSError as error:
        own.exists() and own.rmdir()
        pytest.skip(f"no control group of memory can be made here: {error}")
    yield own
    wait_for("the end of the group", lambda: not (own / "cgroup.procs").read_text())
    own.rmdir()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "who"),
    [
        (("num_workers=1", "+dataset.everywhere=false"), 1, "noether: the kernel has killed a process"),
        (("devices=2", "+dataset.everywhere=true"), 128 + signal.SIGKILL, "is gone: the kernel has killed a process"),
    ],
    ids=["a loader worker", "a rank"],
)
def test_the_kernel_s_killer_is_named(words, code: int, who: str, group: Path, environ, tmp_path: Path) -> None:
    (tmp_path / "eats.py").write_text(EATS)
    variables = environ | {"PYTHONPATH": f"{REPOSITORY}:{OWN}:{tmp_path}"}
    data = ("dataset.kind=eats.Eats", "dataset.count=64", f"output_path={tmp_path}", *words)
    train = [sys.executable, "-m", "noether", "train", "--hp", str(OWN / "lines.yaml"), *data]
    enter = ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]
    done = run_to_end([*enter, *train], variables, cwd=OWN)
    assert done.returncode == code, done.stderr
    assert who in done.stderr
    assert "900 MiB" in done.stderr
    assert "--memory=2g" in done.stderr

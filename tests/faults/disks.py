"""Make the file operations of a run fail, through a preloaded library, and check what the run does.

    python -m tests.faults.disks --cases 200 [--first 0] [--record FILE]

A seed draws one kind of call (open, write, fsync, rename, unlink, mkdir, stat, or any of them), one error, and the
calls that fail: a single one, a range, or all from some call on. The run must succeed or end with a message. Then the
same command runs on the working disk: the last checkpoint must have the same bits as an undisturbed run's. Needs cc.
"""

import errno
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from . import victim
from .room import LIMIT_S, NO_TRACEBACK, CalmRoom, ended, final_hashes, history
from .series import options, run_series

SOURCE = Path(__file__).with_name("disk_shim.c")
CALLS = ("open", "write", "fsync", "rename", "unlink", "mkdir", "stat", "any")
ERRORS = (
    *(errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EBUSY, errno.EROFS, errno.EACCES, errno.EMFILE),
    *(errno.ENOMEM, errno.ETIMEDOUT, errno.ENODEV, errno.EREMOTEIO),
)


def build_shim(folder: Path) -> Path | None:
    """Compile the library; return its path, or None if there is no compiler."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    target = folder / "disk_shim.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-o", str(target), str(SOURCE), "-ldl"]
    subprocess.run(command, check=True, timeout=60)
    return target


class Scene(CalmRoom):
    """A test folder of runs that have the library loaded, which does nothing unless the variable SHIM_CALL is set."""

    def run_case(self, seed: int) -> tuple[str, list[str]]:
        """Train on a failing disk, then on a working one; return a description and a list of failures."""
        rng, name = random.Random(seed), f"disk-{seed}"
        call, number = rng.choice(CALLS), rng.choice(ERRORS)
        first = 1 + int(rng.random() ** 2 * (600 if call in ("any", "stat") else 120))
        last = first + rng.choice((0, 0, rng.randint(1, 30), 10**6))
        told = {"SHIM_CALL": call, "SHIM_ERRNO": str(number), "SHIM_FIRST": str(first), "SHIM_LAST": str(last)}
        told["SHIM_FOLDER"] = str(self.run_folder(name).path)
        log = self.log(name)
        refused = ended(victim.start(self.config_of(name), log, {**self.environ, **told}), LIMIT_S)
        said, wrong = log.read_text(errors="replace"), []
        span = "the end" if last > 10**6 else str(last)
        story = f"{call}: {errno.errorcode[number]} from call {first} to {span}: {refused}"
        if NO_TRACEBACK in said or refused not in (0, 1, 2):
            wrong.append("a traceback, or an unexpected exit code")
        # state.json contains the metric of the best checkpoint, which differs if that checkpoint was dropped.
        untold = {"state.json"} if "and is dropped" in said else set()
        calm = {file: digest for file, digest in self.calm.hashes.items() if file not in untold}
        if refused == 0 and not calm.items() <= final_hashes(self.run_folder(name)).items():
            wrong.append("a different last checkpoint")
        if refused == 0 and history(self.run_folder(name)) != self.calm.rows and "rows" not in said:
            wrong.append("a different history without a message")
        again = ended(victim.start(self.config_of(name), log, self.environ), LIMIT_S)
        story += f", then {again}"
        if again != 0:
            wrong.append("the run does not continue on the working disk")
        elif not calm.items() <= final_hashes(self.run_folder(name)).items():
            wrong.append("a different last checkpoint on the working disk")
        left = list(self.run_folder(name).path.rglob(".attempt-*"))
        if again == 0 and left:
            wrong.append(f"temporary files remain: {left}")
        shutil.rmtree(self.run_folder(name).path, ignore_errors=True)
        return story, [f"{text}\n{log.read_text(errors='replace')}" for text in wrong]


def main() -> int:
    given = options(__doc__, 200).parse_args()
    with tempfile.TemporaryDirectory(prefix="disks-") as scratch:
        if "disk_shim" not in os.environ.get("LD_PRELOAD", ""):
            shim = build_shim(Path(scratch))
            if shim is None:
                print("tests/faults/disk_shim.c cannot be built: there is no C compiler", file=sys.stderr)
                return 2
            command = [sys.executable, "-m", "tests.faults.disks", *sys.argv[1:]]
            return subprocess.run(command, env={**os.environ, "LD_PRELOAD": str(shim)}).returncode
        return run_series(given, Scene(Path(scratch)).run_case, summary="disks, {failed} differences or tracebacks")


if __name__ == "__main__":
    sys.exit(main())

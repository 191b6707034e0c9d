"""Time the preparation of cases by one process, and by two that share an output folder, like two jobs of an array.

    python benchmarks/prepare.py [--rounds 3] [--cases 12] [--points 2000000] [--json FILE.json]

The two variants take turns. Each process is `noether data prepare --workers 1`, on cases of random points with pressure
and velocity. Reports the speed of two processes divided by that of one process, the CPU time per million points (of a
single process and its worker, including reading and startup), and the disk space per point.
"""

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from record import at_least_one, finish, parser, row, told
from store import MAP, write_source


def seconds(source: Path, out: Path, processes: int) -> tuple[float, float]:
    """Prepare the cases in `source` by some processes; return the wall seconds and the CPU seconds."""
    words = [sys.executable, "-m", "noether", "data", "prepare", str(source), str(out)]
    words += ["--map", str(source / "cases.yaml"), "--workers", "1"]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    started = [subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(processes)]
    for one, said in [(one, one.communicate()[1]) for one in started]:
        if one.returncode:
            raise subprocess.CalledProcessError(one.returncode, words, stderr=said.decode())
    taken, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return taken, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    own = parser(__doc__)
    own.set_defaults(rounds=3)
    own.add_argument("--cases", type=at_least_one, default=12)
    own.add_argument("--points", type=at_least_one, default=2_000_000, help="points per case")
    options = own.parse_args()
    gains, costs, size = [], [], 0
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "source"
        source.mkdir()
        (source / "cases.yaml").write_text(MAP)
        for case in range(options.cases):
            write_source(source / f"case_{case}.vtu", options.points)
        for turn in range(options.rounds):
            clock = {}
            for processes in (1, 2) if turn % 2 == 0 else (2, 1):
                out = Path(name) / f"out-{turn}-{processes}"
                clock[processes], busy = seconds(source, out, processes)
                if processes == 1:
                    costs.append(1e6 * busy / options.cases / options.points)
                    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
            gains.append(clock[1] / clock[2])
    finish(
        "prepare",
        [
            row("two processes / one, cases a second", gains),
            row("seconds of a core for a million points", costs),
            row("bytes of a point with four numbers", [size / options.cases / options.points]),
        ],
        options.json,
        cases=options.cases,
        points=options.points,
    )


if __name__ == "__main__":
    told(main)

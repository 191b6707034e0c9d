"""Run a short version of every benchmark in turn: ten to fifteen minutes on two idle cores (`make bench`).

    python benchmarks/bench.py [NAME ...] [--out FOLDER] [--list]

Each benchmark runs in its own process with a time limit and writes FOLDER/NAME.json, so its results survive if a later
benchmark fails. With the default folder (benchmarks/results/bench), the charts of docs/performance.md and the table in
FOLDER/table.md are then redrawn. The exit code is 1 if a benchmark failed. A missed goal is reported but is not a
failure, because other work on the machine may have caused it.
"""

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from record import REPOSITORY, RESULTS, reached, text_of

# For each benchmark: the time limit in seconds, generous enough for a busy machine, and the script with its arguments.
SHORT: dict[str, tuple[int, list[str]]] = {
    "commands": (60, ["commands.py", "--rounds", "5"]),
    "plan": (60, ["plan.py", "--rounds", "3"]),
    "clock": (60, ["clock.py", "--rounds", "5"]),
    "stop": (120, ["stop.py", "--rounds", "10"]),
    "checkpoint": (400, ["checkpoint.py", "--rounds", "4"]),
    "launch": (600, ["launch.py", "--rounds", "3"]),
    "loop": (600, ["loop.py", "--rounds", "3"]),
    "model_time": (700, ["model_time.py", "--rounds", "3"]),
}
OUT = RESULTS / "bench"


def run(name: str, out: Path) -> bool:
    """Run one benchmark; return whether it succeeded."""
    limit, (script, *words) = SHORT[name]
    target = out / f"{name}.json"
    target.unlink(missing_ok=True)
    command = [sys.executable, str(REPOSITORY / "benchmarks" / script), *words, "--json", str(target)]
    began = time.monotonic()
    print(f"\n{name}: {' '.join(command[1:])}", flush=True)
    path = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "benchmarks")))
    # Its own session, so that killing the process group also ends its child processes.
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, start_new_session=True, cwd=REPOSITORY)
    try:
        code: int | str = process.wait(limit)
    except subprocess.TimeoutExpired:
        code = f"no end after {limit} s"
    except KeyboardInterrupt:
        os.killpg(process.pid, 15)
        raise
    if code != 0:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        for left in REPOSITORY.glob("checkpoint-*/"):  # A killed checkpoint.py leaves 1.2 GB there.
            shutil.rmtree(left, ignore_errors=True)
    print(f"{name}: {'done' if code == 0 else f'FAILED ({code})'} in {time.monotonic() - began:.0f} s", flush=True)
    return code == 0 and target.exists()


def main() -> None:
    own = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("names", nargs="*", choices=[[], *SHORT], metavar="NAME")
    own.add_argument("--out", type=Path, default=OUT)
    own.add_argument("--list", action="store_true", help="list the benchmarks")
    options = own.parse_args()
    if options.list:
        print("\n".join(SHORT))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    failed = [name for name in options.names or SHORT if not run(name, options.out)]
    print(f"\nall in {time.monotonic() - began:.0f} s\n")
    for name in options.names or SHORT:
        if name in failed:
            continue
        for one in json.loads((options.out / f"{name}.json").read_text())["rows"]:
            if reached(one) is not None:
                print(text_of(one))
    if options.out == OUT:
        import charts

        charts.draw(OUT)
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

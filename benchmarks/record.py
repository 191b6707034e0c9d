"""Shared code of the benchmarks: describe the machine, run each variant in its own process, and write results.

A result has the keys `benchmark`, `machine`, `command` and `rows`. A row has `what`, the `median`, `low` and `high` of
its rounds and, if there is a goal, `goal` and `at_least` (true if the goal is a lower bound).
"""

import argparse
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
RESULTS = REPOSITORY / "benchmarks" / "results"
ABOUT = {"world_size": 1, "effective_batch_size": 1, "micro_batch_size": 1, "updates_per_epoch": 1, "config": {}}
"""The facts about its run that a checkpoint must contain."""


def machine() -> dict[str, Any]:
    """Return the processor, cores, load, GPUs and versions, on which results depend, and the date."""
    import torch

    name = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else ():
        if line.startswith("model name"):
            name = line.partition(":")[2].strip()
            break
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return {
        "processor": name,
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 2),
        "gpus": gpus,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def row(what: str, values: Sequence[float], goal: float | None = None, *, at_least: bool = True) -> dict[str, Any]:
    """Return a result row: the median and range of the values of all rounds, and the goal if there is one."""
    own: dict[str, Any] = {"what": what, "median": statistics.median(values), "low": min(values), "high": max(values)}
    own["rounds"] = len(values)
    if goal is not None:
        own |= {"goal": goal, "at_least": at_least}
    return own


def reached(own: dict[str, Any]) -> bool | None:
    """Return whether a row's median reaches its goal; None if the row has no goal."""
    if "goal" not in own:
        return None
    return bool(own["median"] >= own["goal"] if own["at_least"] else own["median"] <= own["goal"])


def text_of(own: dict[str, Any]) -> str:
    """Return a result row as a line of text."""
    said = f"{own['what']:<68} {own['median']:8.3f}  ({own['low']:.3f} to {own['high']:.3f})"
    if (good := reached(own)) is not None:
        said += f"  goal {'≥' if own['at_least'] else '≤'} {own['goal']:g}{'' if good else '  MISSED'}"
    return said


def finish(benchmark: str, rows: Sequence[dict[str, Any]], out: Path | None, **more: Any) -> None:
    """Print the rows; with `out`, also write the result to this file as JSON."""
    for own in rows:
        print(text_of(own), flush=True)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        words = [word.removeprefix(f"{REPOSITORY}/") for word in sys.argv[1:]]
        command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *words])
        content = {"benchmark": benchmark, "machine": machine(), "command": command, "rows": list(rows), **more}
        out.write_text(json.dumps(content, indent=1) + "\n")


def parser(text: str | None) -> argparse.ArgumentParser:
    """Return an argument parser with the common options `--rounds` and `--json FILE`."""
    own = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    own.add_argument("--rounds", type=at_least_one)
    own.add_argument("--json", type=Path)
    return own


def at_least_one(text: str) -> int:
    """Parse a whole number of at least 1; raise ArgumentTypeError for anything else."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def told(main: Callable[[], None], *refused: type[Exception]) -> None:
    """Run a benchmark; exit with a message instead of a traceback for the expected errors.

    These are programs that are missing or fail, a NoetherError, and the exception types in `refused`.
    """
    from noether.common.errors import NoetherError

    known: tuple[type[Exception], ...] = (NoetherError, *refused)
    try:
        main()
    except known as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except subprocess.CalledProcessError as error:
        words = " ".join(map(str, error.cmd))
        sys.exit(f"{words:.200}\nended with {error.returncode}{chr(10) + error.stderr if error.stderr else ''}")
    except FileNotFoundError as error:
        if "/" in str(error.filename):
            raise
        sys.exit(f"{error.filename} is not installed")


def cpu_seconds(
    words: Sequence[str], environ: dict[str, str], folder: Path | str, codes: Sequence[int] = (0,)
) -> float:
    """Return the CPU seconds of one `noether` command; raise SystemExit if its exit code is not in `codes`."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "noether", *words]
    done = subprocess.run(command, env=environ, cwd=folder, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode not in codes:
        raise SystemExit(f"noether {' '.join(words)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Arm:
    """A process that runs one variant: it reads update counts, and prints a line of JSON with measurements for each."""

    def __init__(self, script: str, *words: str, threads: int = 1) -> None:
        path = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "benchmarks")))
        # PYTHONWARNINGS silences the warnings of other projects about settings that are chosen on purpose.
        environ = {**os.environ, "PYTHONPATH": path, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": str(threads)}
        environ.setdefault("GOMP_SPINCOUNT", "10000")
        self._words = [sys.executable, str(REPOSITORY / "benchmarks" / script), "--arm", *words]
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 (read if the process fails)
        self.process = subprocess.Popen(
            self._words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
            env=environ,
        )

    def answer(self) -> dict[str, Any]:
        """Return the next line of JSON; raise CalledProcessError, with the end of stderr, if the process has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return dict(json.loads(line))
        code = self.process.wait()
        self._said.seek(0)
        raise subprocess.CalledProcessError(code, self._words, stderr="".join(self._said.readlines()[-5:]))

    def ask(self, updates: int) -> dict[str, Any]:
        """Ask the process for this number of updates; return its measurements."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{updates}\n")
        self.process.stdin.flush()
        return self.answer()

    def close(self) -> None:
        """End the process."""
        self.process.terminate()
        self.process.wait()


def peak_mib() -> float:
    """Return this process's peak memory in MiB (getrusage would include the peak of its parent)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def serve(prepare: Any, asked: Any = None) -> None:
    """Make the requested numbers of updates; for each, print the ms per update and the peak memory as JSON.

    Args:
        prepare: returns a function that makes a given number of updates. If that function also does other work, it must
            return the (CPU seconds, wall seconds) of the updates alone; otherwise, its whole call is timed.
        asked: the numbers of updates; None to read them from stdin, one per line.
    """
    started = peak_mib()
    prepare(2)()
    print(json.dumps({"ready": True}), flush=True)
    for count in asked or (int(line) for line in sys.stdin):
        update = prepare(count)
        cpu, wall = time.process_time(), time.perf_counter()
        own = update() or (time.process_time() - cpu, time.perf_counter() - wall)
        answer = {"cpu_ms": own[0] / count * 1e3, "wall_ms": own[1] / count * 1e3, "memory_mib": peak_mib() - started}
        print(json.dumps(answer), flush=True)

"""Measure how much a busy machine slows down a CPU run: with noether's OpenMP spin count, and with libgomp's default.

    python benchmarks/openmp_spin.py

Trains the default model for some updates with each spin count in turn, first alone, then beside one busy process per
core. Prints the median seconds per update with each spin count, and the median of the ratios of neighbouring runs.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from record import told

REPOSITORY = Path(__file__).resolve().parent.parent
SETTINGS: dict[str, dict[str, str]] = {"noether": {}, "libgomp": {"GOMP_SPINCOUNT": "30000000000"}}
ROUNDS = 3


def seconds_per_update(more: dict[str, str]) -> float:
    """Train 60 updates; return the seconds per update of the last 40."""
    environ = {name: value for name, value in os.environ.items() if name not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")}
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "noether",
            "train",
            "+experiment/ellipsoid=quick",
            "accelerator=cpu",
            "devices=1",
        ]
        command += ["trainer.max_updates=60", "trainer.log_every=20 updates", "trainer.evaluate_every=null"]
        command += ["dataset.validation_fraction=0.0", "tracker.report=false", f"output_path={folder}", "run_id=run"]
        subprocess.run(command, env={**environ, **more}, cwd=REPOSITORY, capture_output=True, check=True, timeout=600)
        rows = [json.loads(line) for line in (Path(folder) / "run" / "metrics.jsonl").read_text().splitlines()]
    rates = [float(row["samples_per_second"]) for row in rows if row["kind"] == "training"]
    return 8 / statistics.harmonic_mean(rates[1:])


def measure(busy: int) -> dict[str, list[float]]:
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
    try:
        rounds = [{name: seconds_per_update(more) for name, more in SETTINGS.items()} for _ in range(ROUNDS)]
    finally:
        for other in others:
            other.kill()
            other.wait()
    return {name: [one[name] for one in rounds] for name in SETTINGS}


def main() -> None:
    cores = len(os.sched_getaffinity(0))
    for busy in (0, cores):
        seconds = measure(busy)
        medians = "  ".join(f"{name} {statistics.median(values):.3f} s" for name, values in seconds.items())
        ratio = statistics.median(a / b for a, b in zip(seconds["noether"], seconds["libgomp"], strict=True))
        print(f"{busy} busy processes on {cores} cores: {medians} per update, noether/libgomp {ratio:.2f}", flush=True)


if __name__ == "__main__":
    told(main)

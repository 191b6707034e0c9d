#!/usr/bin/env python3
"""Train four models on solved cases and compare them: study.py CASES OUT --jobs 2.

Prepares CASES with the built-in map (75 % for training, 10 % for validation, 15 % for testing) and trains UPT, AB-UPT,
Transformer and Transolver with three seeds each. Also trains a UPT on twenty cases, from scratch and from weights that
were trained on the built-in cars. OUT/figures.json, OUT/table.md and the pictures in OUT/pictures are updated after
each run. A run uses one thread, so set `--jobs` to the number of cores. The command can be stopped and restarted at any
time: finished runs are kept, and a stopped run resumes from its last checkpoint.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from study_figures import gather_run, write_figures
from study_pictures import draw_pictures

from noether.common.atomic_write import write_whole

STOPPED = 75  # the exit code of a run that was stopped and can be resumed
FEW = 20  # cases to fine-tune on
# An update has four cases. So many take about 200 s on one core (2.1 GHz, AMX), at 0.1, 0.17, 0.22 and 0.15 s each.
UPDATES = {"upt": 2000, "ab_upt": 1200, "transformer": 900, "transolver": 1300}
FEW_UPDATES = 600
UNKNOWN = {"cpu": 0.0, "wall": 0.0}
RECIPE = (
    "dataset=cases",
    "trainer=default",
    "dataset.geometry_points=512",
    "dataset.points_per_update={surface: 256, volume: 256}",
    "task.inputs=[surface_normals, volume_normals, volume_sdf]",
    "trainer.effective_batch_size=4",
    "trainer.ema_decay=0.99",
    "optimizer=adamw",
)
ALONE = ("accelerator=cpu", "devices=1", "num_workers=0", "resume=auto")


@dataclass(frozen=True)
class Run:
    """A run of the study: its name, its row in the table (`group`), its seed, and its settings (`words`)."""

    name: str
    group: str
    seed: int
    words: tuple[str, ...]
    after: str | None = None  # the name of the run from whose weights this run starts


class Study:
    """A study in a folder: makes its runs, and records which runs are finished and what each has cost."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        self.prepared, self.few = self.out / "prepared", self.out / "prepared-few"
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.children: set[int] = set()

    def folder(self, name: str) -> Path:
        """Return a run's folder."""
        return self.out / "runs" / name

    def finished(self, name: str) -> bool:
        """Return whether a run is finished."""
        return (self.folder(name) / "result.json").is_file()

    def prepare(self) -> None:
        """Prepare the cases, unless this was done already; cases that are solved later are not added."""
        if not (self.prepared / "dataset.json").is_file():
            words = ["data", "prepare", str(self.options.cases), str(self.prepared), "--map", self.options.map]
            if self.call("prepare", [*words, "--skip-broken"]):
                raise SystemExit(f"the cases could not be prepared; see {self.out / 'logs/prepare.log'}")
        if not (self.few / "dataset.json").is_file():
            about = json.loads((self.prepared / "dataset.json").read_text())
            about["splits"]["train"] = about["splits"]["train"][: self.options.few]
            self.few.mkdir(exist_ok=True)
            if not (self.few / "cases").is_symlink():
                (self.few / "cases").symlink_to(Path("..") / self.prepared.name / "cases")
            (self.few / "dataset.json").write_text(json.dumps(about, indent=1))

    def runs(self) -> list[Run]:
        """Return the runs in order: those with the first seed of every model come first."""
        models = [
            self._run(f"{model}-{seed}", model, seed, self.prepared, UPDATES[model])
            for seed in range(self.options.seeds)
            for model in self.options.models
        ]
        if not self.options.few:
            return models
        # This run is that of `make train`, on one core; its data are generated in the default folder.
        cars = Run("cars", "cars", 0, (*ALONE, "model=upt_small", "seed=0", *self._shortened(2412, 8)))
        tuned = []
        for seed in range(self.options.seeds):
            for group, after in (("few-nothing", None), ("few-cars", "cars")):
                begin = () if after is None else (f"initial_weights={self.folder(after)}",)
                tuned.append(self._run(f"{group}-{seed}", group, seed, self.few, FEW_UPDATES, begin, after))
        return [*models, cars, *tuned]

    def _run(
        self, name: str, group: str, seed: int, data: Path, updates: int, more: tuple[str, ...] = (),
        after: str | None = None,
    ) -> Run:  # fmt: skip
        model = group if group in UPDATES else "upt"
        words = (*RECIPE, f"model={model}_small", f"dataset_root={data}",
                 f"seed={seed}", *ALONE, *self._shortened(updates, 4), *more, *self.options.settings)  # fmt: skip
        return Run(name, group, seed, words, after)

    def _shortened(self, updates: int, evaluations: int) -> tuple[str, ...]:
        updates = max(1, round(updates * self.options.length))
        every = f"{max(1, updates // evaluations)} updates"
        return (
            f"trainer.max_updates={updates}",
            f"trainer.evaluate_every={every}",
            f"trainer.checkpoint_every={every}",
        )

    def train(self, run: Run) -> str:
        """Train one run to its end; return a line that describes it."""
        if self.stop.is_set():
            return f"{run.name}: not started"
        words = ["train", *run.words, f"output_path={self.out / 'runs'}", f"run_id={run.name}"]
        code = self.call(run.name, words)
        if code:
            said = "stopped; can be resumed" if code == STOPPED else f"FAILED with {code}"
            return f"{run.name}: {said} ({self.out / 'logs' / run.name}.log)"
        self.report()
        cost = self.costs().get(run.name, UNKNOWN)
        return f"{run.name}: {gather_run(self.folder(run.name), cost)['words']}"

    def call(self, name: str, words: list[str]) -> int:
        """Run `noether` with one thread, log its output, and add its cost to OUT/costs.json; return its exit code."""
        log, began = self.out / "logs" / f"{name}.log", time.monotonic()
        log.parent.mkdir(exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with log.open("ab") as file:
            # The child has its own session, so that Ctrl-C reaches only this process, which passes it on once.
            child = subprocess.Popen([sys.executable, "-m", "noether", *words], stdout=file, stderr=subprocess.STDOUT,
                                     env=environment, start_new_session=True)  # fmt: skip
            self.children.add(child.pid)
            if self.stop.is_set():
                child.terminate()
            _, status, used = os.wait4(child.pid, 0)
            self.children.discard(child.pid)
        child.returncode = os.waitstatus_to_exitcode(status)
        with self.lock:
            costs = self.costs()
            own = costs.setdefault(name, {"cpu": 0.0, "wall": 0.0})
            own["cpu"] += used.ru_utime + used.ru_stime
            own["wall"] += time.monotonic() - began
            write_whole(self.out / "costs.json", json.dumps(costs, indent=1) + "\n")
        return child.returncode

    def costs(self) -> dict[str, dict[str, float]]:
        """Return the CPU and wall seconds of each run, summed over the attempts of the run."""
        path = self.out / "costs.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def report(self) -> None:
        """Write the figures, the table and the pictures of the finished runs."""
        with self.lock:
            splits = json.loads((self.prepared / "dataset.json").read_text())["splits"]
            about = {"cases": {name: len(cases) for name, cases in splits.items()}, "few": self.options.few,
                     "jobs": self.options.jobs}  # fmt: skip
            found: dict[str, Any] = {}
            for run in self.runs():
                if self.finished(run.name) and run.name != "cars":
                    own = gather_run(self.folder(run.name), self.costs().get(run.name, UNKNOWN))
                    found[run.name] = {"group": run.group, "seed": run.seed, **own}
            if found:
                figures = write_figures(self.out, about, found)
                draw_pictures(self.out / "runs", figures, self.out / "pictures")

    def end(self, number: int, frame: object) -> None:
        """Handle a signal by stopping every run, after it has saved."""
        self.stop.set()
        for child in list(self.children):
            os.kill(child, signal.SIGTERM)


def main() -> int:
    """Train the unfinished runs; return 75 if the study was stopped, 1 if a run failed, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, metavar="CASES", help="the folder of cases from make_cases.py")
    parser.add_argument("out", type=Path, metavar="OUT", help="folder for the prepared cases, runs and figures")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="further settings for every run")
    parser.add_argument("--jobs", type=int, default=1, help="number of runs in parallel (default 1)")
    parser.add_argument("--map", default="openfoam", help="map of the cases (default: openfoam)")
    parser.add_argument("--seeds", type=int, default=3, help="number of runs per model (default 3)")
    parser.add_argument("--models", nargs="+", choices=UPDATES, default=list(UPDATES), help="default: all four")
    parser.add_argument(
        "--few", type=int, default=FEW, help=f"number of cases for fine-tuning (default {FEW}; 0: none)"
    )
    parser.add_argument("--length", type=float, default=1.0, help="share of each run's updates to make (for a trial)")
    options = parser.parse_intermixed_args()
    options.out.mkdir(parents=True, exist_ok=True)
    study = Study(options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, study.end)
    study.prepare()
    runs = study.runs()
    to_make = [run for run in runs if not study.finished(run.name)]
    print(f"{options.out}: {len(runs) - len(to_make)} of {len(runs)} runs are finished", flush=True)
    failed = False
    # Runs that start from the weights of another run come last.
    for part in ([run for run in to_make if run.after is None], [run for run in to_make if run.after is not None]):
        with ThreadPoolExecutor(options.jobs) as pool:
            for job in as_completed([pool.submit(study.train, run) for run in part]):
                print(f"{sum(study.finished(run.name) for run in runs)} of {len(runs)}  {job.result()}", flush=True)
                failed |= "FAILED" in job.result()
    study.report()
    return STOPPED if study.stop.is_set() else int(failed)


if __name__ == "__main__":
    sys.exit(main())

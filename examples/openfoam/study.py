#!/usr/bin/env python3
"""Trains four models on solved cases and compares them: study.py CASES OUT --jobs 2.

Prepares CASES by the ready map (75 % to train on, 10 % to validate with, 15 % to test on), trains UPT, AB-UPT,
Transformer and Transolver from three seeds each, and fine-tunes the built-in cars' weights to twenty cases beside
training from scratch on them. After each run OUT/figures.json, OUT/table.md and the pictures in OUT/pictures are
written. A run takes one thread, so `--jobs` is the number of cores. The command can be stopped and started again at
any time: what is finished is kept, and a run that was stopped goes on from its last checkpoint.
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

STOPPED = 75  # a run that saved everything and can go on
FEW = 20  # cases to fine-tune on
# Updates of four cases that take about 200 s of one core (2.1 GHz, AMX): 0.1, 0.17, 0.22 and 0.15 s each.
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
    """A run of the study: its name, what it belongs to in the table, and the words of `noether train`."""

    name: str
    group: str
    seed: int
    words: tuple[str, ...]
    after: str | None = None  # the run whose weights it begins with


class Study:
    """The runs of a folder, which of them are finished, and what they cost."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.out
        self.prepared, self.few = self.out / "prepared", self.out / "prepared-few"
        self.lock, self.stop = threading.Lock(), threading.Event()
        self.children: set[int] = set()

    def folder(self, name: str) -> Path:
        """The run's folder."""
        return self.out / "runs" / name

    def finished(self, name: str) -> bool:
        """Whether the run has its result."""
        return (self.folder(name) / "result.json").is_file()

    def prepare(self) -> None:
        """Prepares the cases once; cases that are solved later belong to another study."""
        if not (self.prepared / "dataset.json").is_file():
            words = ["data", "prepare", str(self.options.cases), str(self.prepared), "--map", self.options.map]
            if self.call("prepare", [*words, "--skip-broken"]):
                raise SystemExit(f"the cases could not be prepared: {self.out / 'logs/prepare.log'}")
        if not (self.few / "dataset.json").is_file():
            about = json.loads((self.prepared / "dataset.json").read_text())
            about["splits"]["train"] = about["splits"]["train"][: self.options.few]
            self.few.mkdir(exist_ok=True)
            if not (self.few / "cases").is_symlink():
                (self.few / "cases").symlink_to(Path("..") / self.prepared.name / "cases")
            (self.few / "dataset.json").write_text(json.dumps(about, indent=1))

    def runs(self) -> list[Run]:
        """The runs, the first seed of every model first."""
        models = [
            self._run(f"{model}-{seed}", model, seed, self.prepared, UPDATES[model])
            for seed in range(self.options.seeds)
            for model in self.options.models
        ]
        if not self.options.few:
            return models
        # The built-in cars are made where `noether train` keeps them; it is the run of `make train`, on one core.
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
        """Trains one run to its end; returns a line about it."""
        if self.stop.is_set():
            return f"{run.name}: not started"
        words = ["train", *run.words, f"output_path={self.out / 'runs'}", f"run_id={run.name}"]
        code = self.call(run.name, words)
        if code:
            said = "stopped, and will go on" if code == STOPPED else f"FAILED with {code}"
            return f"{run.name}: {said} ({self.out / 'logs' / run.name}.log)"
        self.report()
        cost = self.costs().get(run.name, UNKNOWN)
        return f"{run.name}: {gather_run(self.folder(run.name), cost)['words']}"

    def call(self, name: str, words: list[str]) -> int:
        """Runs `noether` with one thread and a log, and adds to OUT/costs.json what it took; returns its exit code."""
        log, began = self.out / "logs" / f"{name}.log", time.monotonic()
        log.parent.mkdir(exist_ok=True)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        with log.open("ab") as file:
            # A session of its own: Ctrl-C is answered here, once, and passed on.
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
        """Seconds of a processor, and of time, of each run, all its starts together."""
        path = self.out / "costs.json"
        return dict(json.loads(path.read_text())) if path.is_file() else {}

    def report(self) -> None:
        """Writes the figures, the table and the pictures of what is finished."""
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
        """Asks every run to save and stop; for a signal."""
        self.stop.set()
        for child in list(self.children):
            os.kill(child, signal.SIGTERM)


def main() -> int:
    """Makes the runs that are not finished; 75 where the study was stopped, 1 where a run failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", type=Path, metavar="CASES", help="the folder that make_cases.py made")
    parser.add_argument("out", type=Path, metavar="OUT", help="where the prepared cases, runs and figures go")
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE", help="further settings of every run")
    parser.add_argument("--jobs", type=int, default=1, help="how many runs at a time (default 1)")
    parser.add_argument("--map", default="openfoam", help="the map of the cases (default: openfoam)")
    parser.add_argument("--seeds", type=int, default=3, help="how often each is trained (default 3)")
    parser.add_argument("--models", nargs="+", choices=UPDATES, default=list(UPDATES), help="default: all four")
    parser.add_argument(
        "--few", type=int, default=FEW, help=f"cases to fine-tune on (default {FEW}; 0: no fine-tuning)"
    )
    parser.add_argument("--length", type=float, default=1.0, help="share of each run's updates, for a trial")
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
    # What others begin with is made with the first, and what begins with it comes after all that does not.
    for part in ([run for run in to_make if run.after is None], [run for run in to_make if run.after is not None]):
        with ThreadPoolExecutor(options.jobs) as pool:
            for job in as_completed([pool.submit(study.train, run) for run in part]):
                print(f"{sum(study.finished(run.name) for run in runs)} of {len(runs)}  {job.result()}", flush=True)
                failed |= "FAILED" in job.result()
    study.report()
    return STOPPED if study.stop.is_set() else int(failed)


if __name__ == "__main__":
    sys.exit(main())

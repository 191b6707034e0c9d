"""Compare the errors of Muon and AdamW on unseen cases, after equally many updates and after equal time.

    python benchmarks/optimizers.py FOLDER [--cases PREPARED] [--models MODEL …] [--seeds N] [--updates N]

Two compared runs have the same model, seed, batches and schedule; each optimiser uses its preset's learning rate. The
errors are the relative L2 of each field on the test split. First, short runs measure the time of an update with each
optimiser. Then AdamW trains for N updates; one run with Muon also makes N updates, another as many as fit into AdamW's
time. Without --cases, the data are the built-in cars. FOLDER keeps the runs, so a restarted benchmark resumes.
"""

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from record import at_least_one, finish, parser, row, told

MODELS = ("upt_small", "ab_upt_small", "transformer_small", "transolver_small")
GOAL = 0.85


class Study:
    """The runs in one folder, and the settings that all of them share."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder: Path = options.folder
        self.common = ["trainer.max_epochs=null", "trainer.evaluate_every=null", "trainer.checkpoint_every=null",
                       "tracker.report=false", "tracker.tensorboard=false", "devices=1", "accelerator=cpu",
                       f"output_path={self.folder}", *options.settings]  # fmt: skip
        if options.cases is not None:
            self.common += ["dataset=cases", f"dataset_root={options.cases}"]

    def train(self, name: str, model: str, optimizer: str, seed: int, updates: int, *more: str) -> Path:
        """Train a run unless it is already finished; return its folder."""
        run = self.folder / name
        if not (run / "result.json").exists():
            own = [f"model={model}", f"optimizer={optimizer}", f"seed={seed}", f"trainer.max_updates={updates}"]
            words = ["noether", "train", *self.common, *own, f"run_id={name}", "resume=auto", *more]
            done = subprocess.run([sys.executable, "-m", *words], capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{' '.join(words)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return run

    def errors(self, run: Path) -> dict[str, float]:
        """Return the relative L2 of each field on the test split, without the fields' parts."""
        found = json.loads((run / "result.json").read_text())["metrics"]
        return {name: value for name, value in found.items() if name.endswith("/relative_l2") and name.count("/") == 1}

    def seconds(self, run: Path) -> float:
        """Return the seconds per update for data, forward pass, backward pass and optimiser together."""
        rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        # A resumed run has one such row per attempt; take that of the attempt with the most updates.
        own = max((row for row in rows if row["kind"] == "time_use"), key=lambda row: row["updates"])
        parts = own["parts"]
        return float(sum(parts[name] for name in ("data", "forward", "backward", "optimizer")) / own["updates"])


def compare(study: Study, model: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Train the runs of one model; return rows with Muon's time per update and errors, divided by AdamW's."""
    seconds: dict[str, list[float]] = {"adamw": [], "muon": []}
    for number in range(options.rounds):
        for kind, name in (("adamw", options.adamw), ("muon", options.muon)):
            run = study.train(f"{model}-timed-{kind}-{number}", model, name, 0, min(30, options.updates))
            seconds[kind].append(study.seconds(run))
    # Compare the fastest run of each optimiser, because other work on the machine can only slow updates down.
    cost = min(seconds["muon"]) / min(seconds["adamw"])
    shorter = max(1, round(options.updates / cost))
    ratios: dict[str, list[float]] = {"updates": [], "time": []}
    for seed in range(options.seeds):
        base = study.errors(study.train(f"{model}-adamw-{seed}", model, options.adamw, seed, options.updates))
        for what, updates in (("updates", options.updates), ("time", shorter)):
            own = study.errors(study.train(f"{model}-muon-{what}-{seed}", model, options.muon, seed, updates))
            ratios[what].append(statistics.geometric_mean(own[name] / base[name] for name in base))
            print(f"{model} seed {seed} {what}: {own} where AdamW has {base}", flush=True)
    return [
        row(f"{model}: time of an update, Muon ÷ AdamW", [cost]),
        row(f"{model}: error at equal updates, Muon ÷ AdamW", ratios["updates"], GOAL, at_least=False),
        row(f"{model}: error at equal time ({shorter} updates)", ratios["time"], GOAL, at_least=False),
    ]


def main() -> None:
    own = parser(__doc__)
    own.set_defaults(rounds=3)  # the number of short runs with each optimiser
    own.add_argument("folder", type=Path, help="folder that keeps the runs")
    own.add_argument("--cases", type=Path, help="a prepared data set (default: the built-in cars)")
    own.add_argument("--models", nargs="+", default=MODELS)
    own.add_argument("--adamw", default="adamw_short")
    own.add_argument("--muon", default="muon")
    own.add_argument("--seeds", type=at_least_one, default=3)
    own.add_argument("--updates", type=at_least_one, default=300)
    own.add_argument("--settings", nargs="+", default=[], help="for all runs, e.g. trainer.effective_batch_size=4")
    options = own.parse_args()
    study = Study(options)
    rows = [found for model in options.models for found in compare(study, model, options)]
    finish("optimizers", rows, options.json)


if __name__ == "__main__":
    told(main)

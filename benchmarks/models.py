"""Compare how well the four models learn the built-in flow in the same number of updates, and the cost of each.

    python benchmarks/models.py [--updates N] [--seeds N] [--published] [--out FOLDER] [SETTING=VALUE ...]

Trains UPT, AB-UPT, Transformer and Transolver with the default recipe on the same batches. The models take turns, some
updates at a time, so that other work on the machine affects all of them alike; after each turn, a model is evaluated on
all points of the test split. Peak memory is measured in a separate process per model. Prints a Markdown table; `--out`
also writes models.md (the table), models.json (the values) and models.png (the curves) to FOLDER. `--published` uses
the published model sizes, for a GPU. Settings are those of `noether train`.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from record import at_least_one, told
from torch import nn

from noether.common.dotted_path import code_granted
from noether.config.compose import load_config
from noether.config.schema import RunConfig
from noether.core.data.build import prepare_data
from noether.core.data.loader import to_device, training_batches
from noether.core.data.order import GlobalOrder, RankOrder
from noether.core.evaluate import Evaluator
from noether.core.models.build import count_parameters
from noether.launch.batches import plan_batches
from noether.launch.detect.placement import Device, Endpoint, Worker
from noether.launch.process_group.group import Group
from noether.launch.processes.context import WorkerContext
from noether.launch.processes.worker import openmp_defaults
from noether.training.build import build_run
from noether.training.time_use import peak_memory_mib
from noether.training.update import Updater

MODELS = {"upt": "UPT", "ab_upt": "AB-UPT", "transformer": "Transformer", "transolver": "Transolver"}
POINTS_OF_A_CURVE = 8
UPDATES_FOR_MEMORY = 3


def this_device() -> Group:
    """Return a group of one rank on the first GPU, or on the CPU if there is none."""
    device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
    worker = Worker(0, 0, 0, Device("cuda" if device.type == "cuda" else "cpu"))
    threads = torch.get_num_threads()
    return Group(WorkerContext(worker, 1, 1, "localhost", Endpoint("localhost", 0), 0, threads), device)


@dataclass
class Contender:
    """A model in training. `seconds` lists the time of each update, `curve` the errors of the fields by update."""

    config: RunConfig
    group: Group
    seconds: list[float] = field(default_factory=list)
    curve: list[tuple[int, dict[str, float]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.data = prepare_data(self.config)
        batch = plan_batches(self.config.trainer.effective_batch_size, None, self.group.world_size)
        with code_granted(self.config.own_code()):
            self.run = run = build_run(self.config, self.data, self.group, batch)
        self.updater = Updater(run.state, self.group, self.config.trainer, run.precision, run.batch.accumulation_steps)
        order = GlobalOrder(len(run.problem.train_indices), run.batch.effective, self.config.seed)
        own = RankOrder(order, run.batch.micro_batch_sizes(), 0, 0, run.length.total_updates)
        self.stream = training_batches(run.problem.splits.train, run.problem.train_indices, own, run.problem.draw)

    def train(self, updates: int) -> None:
        """Make updates; time each of them from when its batch is on the device until the optimiser's step has ended."""
        run = self.run
        for _ in range(updates):
            batches = [
                to_device(next(self.stream), self.group.device, run.precision.weights)
                for _ in range(run.batch.accumulation_steps)
            ]
            self._wait()
            started = time.perf_counter()
            self.updater.update(batches, run.schedule(run.state.progress.updates))
            self._wait()
            self.seconds.append(time.perf_counter() - started)

    def evaluate(self) -> None:
        """Add a point to the curve: the mean relative L2 of each field over the test split."""
        run = self.run
        model = next(iter(run.state.evaluation_models().values()))
        test = run.problem.splits.test
        evaluator = Evaluator(self.config, run.problem, self.group, run.precision, usual_batch_size=run.batch.micro)
        sample_metrics = evaluator.sample_metrics(model, test, range(len(test)))
        summary = run.problem.task.summarise(sample_metrics)
        errors = {name: summary[f"{name}/relative_l2"] for name in run.problem.task.fields}
        self.curve.append((run.state.progress.updates, errors))

    def _wait(self) -> None:
        if self.group.device.type == "cuda":
            torch.cuda.synchronize()


def config_of(model: str, options: argparse.Namespace, seed: int) -> RunConfig:
    name = model if options.published else f"{model}_small"
    return load_config([f"model={name}", *options.settings, f"trainer.max_updates={options.updates}", f"seed={seed}"])


def measure_memory(model: str, options: argparse.Namespace) -> float:
    """Build and train one model in this process; return the MiB that this adds to the imports."""
    layer = nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.randn(2, 4)).sum().backward()
    optimizer.step()  # Import torch's compiler now: an optimiser's first step does.
    group = this_device()
    before = peak_memory_mib(group.device)
    Contender(config_of(model, options, 0), group).train(min(UPDATES_FOR_MEMORY, options.updates))
    return peak_memory_mib(group.device) - before


def memory_in_a_process(model: str, arguments: Sequence[str]) -> float:
    command = [sys.executable, str(Path(__file__).resolve()), "--memory-of", model, *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1800)
    return float(done.stdout.strip().splitlines()[-1])


def compete(options: argparse.Namespace, seed: int) -> dict[str, Contender]:
    group = this_device()
    contenders = {model: Contender(config_of(model, options, seed), group) for model in MODELS}
    legs = min(POINTS_OF_A_CURVE, options.updates)
    ends = [round(options.updates * (leg + 1) / legs) for leg in range(legs)]
    for start, end in zip([0, *ends], ends, strict=False):
        for contender in contenders.values():
            contender.train(end - start)
            contender.evaluate()
        errors = ", ".join(
            f"{MODELS[model]} {100 * next(iter(contender.curve[-1][1].values())):.1f} %"
            for model, contender in contenders.items()
        )
        print(f"seed {seed}, update {end} of {options.updates}: {errors}", file=sys.stderr, flush=True)
    return contenders


def figures_of(runs: list[dict[str, Contender]], memory: dict[str, float]) -> dict[str, Any]:
    found = {}
    for model in MODELS:
        seeds = [run[model] for run in runs]
        # Leave out the first tenth of the updates, which also allocate memory and, on a GPU, choose kernels.
        timed = [second for one in seeds for second in one.seconds[len(one.seconds) // 10 :]]
        found[model] = {
            "parameters": count_parameters(seeds[0].run.state.model),
            "curves": [one.curve for one in seeds],
            "median_seconds_per_update": statistics.median(timed),
            "peak_memory_mib": memory[model],
        }
    return found


def table(figures: dict[str, Any], fields: Sequence[str]) -> str:
    head = ["model", "parameters", *(f"{name}, relative L2" for name in fields), "time per update", "peak memory"]
    rows = [head, ["---"] * len(head)]
    for model, found in figures.items():
        cells = []
        for name in fields:
            last = [100 * curve[-1][1][name] for curve in found["curves"]]
            spread = f" ± {statistics.stdev(last):.2f}" if len(last) > 1 else ""
            cells.append(f"{statistics.mean(last):.2f}{spread} %")
        seconds, memory = found["median_seconds_per_update"], found["peak_memory_mib"]
        rows.append(
            [MODELS[model], f"{found['parameters']:,}", *cells, f"{1000 * seconds:.1f} ms", f"{memory:.0f} MiB"]
        )
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def conditions(options: argparse.Namespace, config: RunConfig, group: Group) -> str:
    device = torch.cuda.get_device_name(0) if group.device.type == "cuda" else f"{torch.get_num_threads()} CPU threads"
    settings = f", {' '.join(options.settings)}" if options.settings else ""
    return (
        f"{options.updates} updates of {config.trainer.effective_batch_size} samples, {options.seeds} seed(s), "
        f"{config.trainer.precision}, {device}, torch {torch.__version__}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[0]:.1f}{settings}"
    )


def draw_curves(path: Path, figures: dict[str, Any], fields: Sequence[str]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    figure, axes = pyplot.subplots(1, len(fields), figsize=(5 * len(fields), 3.6), constrained_layout=True)
    for axis, name in zip(axes, fields, strict=True):
        for number, (model, found) in enumerate(figures.items()):
            for curve in found["curves"]:
                updates, errors = zip(*((update, 100 * values[name]) for update, values in curve), strict=True)
                first = curve is found["curves"][0]
                axis.plot(updates, errors, f"C{number}", marker=".", label=MODELS[model] if first else None)
        axis.set(title=name.replace("_", " "), xlabel="update", ylabel="relative L2 in %", yscale="log")
        for formatter in (axis.yaxis.set_major_formatter, axis.yaxis.set_minor_formatter):
            formatter(ticker.FormatStrFormatter("%g"))
        axis.grid(alpha=0.3, which="both")
    axes[0].legend()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=at_least_one, default=600)
    parser.add_argument("--seeds", type=at_least_one, default=1)
    parser.add_argument("--published", action="store_true", help="use the published sizes instead of the small ones")
    parser.add_argument("--out", type=Path, help="folder for models.md, models.json and models.png")
    parser.add_argument("--memory-of", choices=MODELS, help=argparse.SUPPRESS)
    parser.add_argument("settings", nargs="*", metavar="SETTING=VALUE")
    options = parser.parse_intermixed_args()
    if waiting := openmp_defaults(os.environ):
        # Restart with the OpenMP settings of noether's runs, which libgomp reads only when it is loaded.
        os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **waiting})
    if options.memory_of:
        print(measure_memory(options.memory_of, options))
        return
    config = config_of("upt", options, 0)
    prepare_data(config)
    arguments = [*options.settings, "--updates", str(options.updates), *(["--published"] if options.published else [])]
    memory = {model: memory_in_a_process(model, arguments) for model in MODELS}
    runs = [compete(options, seed) for seed in range(options.seeds)]
    figures, fields = figures_of(runs, memory), list(runs[0]["upt"].run.problem.task.fields)
    text = f"{conditions(options, config, this_device())}\n\n{table(figures, fields)}\n"
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "models.md").write_text(text)
        (options.out / "models.json").write_text(json.dumps(figures, indent=1))
        draw_curves(options.out / "models.png", figures, fields)


if __name__ == "__main__":
    told(main)

"""Sweeps (`noether train -m seed=1,2,3`): plan the runs of a sweep, train one after another, and compare them."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import fmean, stdev
from types import FrameType
from typing import IO, Any

from rich.table import Table

from noether.checkpoints.resume import find_target
from noether.checkpoints.run_settings import load_run_config
from noether.common.console import Console
from noether.common.errors import ExitCode, RequestError, signal_code
from noether.common.numbers import counted
from noether.common.processes import stops_handled
from noether.config.compose import load_sweep
from noether.config.sweep import override_value, run_names, varied
from noether.launch.plan import RunPlan, plan_run, render_placement
from noether.launch.processes.death_signal import set_death_signal
from noether.runs.folder import RunFolder, is_run, new_run_id
from noether.runs.metrics import Metrics, described_in
from noether.runs.records import finite_values, mapping, read_record, write_record

READ_S = 2.0
"""How long to wait for output after a run has ended, in seconds: a process that it started may keep the pipe open."""


@dataclass(frozen=True)
class SweptRun:
    """One run of a sweep: its folder, all its overrides, and the overrides that differ between the runs."""

    folder: RunFolder
    words: tuple[str, ...]
    differs: tuple[str, ...]

    @property
    def group(self) -> str:
        """The overrides that this run shares with the runs that differ from it only by seed."""
        return " ".join(text for text in self.differs if not text.lstrip("+").startswith("seed="))


def sweep_here(overrides: Sequence[str], hp: str | None, *, dry_run: bool = False) -> int:
    """Train each run in its own process, so that no run affects the next one.

    Every run is checked before the first one starts. A run that fails or stops ends the sweep with its exit code.
    """
    from noether.runs.report.page import write_report  # This import takes half a second, and a plan does not need it.

    base, runs, again = plan_sweep(overrides, hp)
    console = Console(None, speaks=True)
    for index, run in enumerate(runs):
        console.say(f"run {index + 1} of {len(runs)}: {run.folder.path}   {' '.join(run.differs)}")
        if dry_run:
            continue
        code = train_apart([*(["--hp", hp] if hp else []), *run.words])
        if code != ExitCode.DONE:
            how = "stopped with everything saved" if code == ExitCode.CHECKPOINTED else f"ended with {code}"
            console.say(f"run {index + 1} of {len(runs)} {how}; to continue, repeat the command with\n  {again}")
            return code
    if dry_run:
        return ExitCode.DONE
    found = {run: read_record(run.folder.result) for run in runs}
    results = {run: finite_values(mapping(result, "metrics")) for run, result in found.items()}
    summary = summarise(results)
    path = runs[0].folder.path.parent / f"{base}.sweep.json"
    each = [
        {"run": str(run.folder.path), "group": run.group, "overrides": run.differs, "metrics": results[run]}
        for run in runs
    ]
    write_record(path, {"groups": summary, "runs": each})
    for run in runs:
        if len(runs) > 1 and run.folder.report.exists():
            write_report(run.folder)  # Written again, because the page can now show how much the seeds' results differ.
    console.say("", sweep_table(summary, described_in(*found.values())), f"\nsweep  {path}", sep="\n")
    return ExitCode.DONE


def plan_here(
    overrides: Sequence[str], hp: str | None, *, multirun: bool, visible_devices: str | None, as_json: bool
) -> int:
    """Print what `noether train` would do with one run, or with each run of a sweep; return the exit code."""
    runs: dict[str, Sequence[str]] = {"": overrides}
    if multirun:
        swept = plan_sweep(overrides, hp, "plan")[1]
        runs = {f"{run.folder.path}   {' '.join(run.differs)}": run.words for run in swept}
    plans = [checked_plan(words, hp, visible_devices) for words in runs.values()]
    if as_json:
        found = [plan.as_dict() for plan in plans]
        print(json.dumps(found if multirun else found[0], indent=2))
        return ExitCode.DONE
    console = Console(None, speaks=True)
    for name, plan in zip(runs, plans, strict=True):
        shown = render_placement(plan.placement, plan.batch, every_reason=not multirun)
        console.say(*([f"run    {name}"] if multirun else []), *shown, sep="\n")
    return ExitCode.DONE


def checked_plan(overrides: Sequence[str], hp: str | None, visible_devices: str | None = None) -> RunPlan:
    """Return the plan of a run. If the plan is for this machine, raise the same errors as `noether train`."""
    config = load_run_config(overrides, hp)
    plan = plan_run(config, visible_devices=visible_devices)
    if visible_devices is None:
        from noether.training.preflight import check_own_code, check_software, check_start

        check_software(config, plan.placement)
        check_start(config, find_target(config))
        check_own_code(config, plan.batch.accumulation_steps)
    return plan


def summarise(results: Mapping[SweptRun, Mapping[str, float]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return {group: {metric: {mean, std, n}}} over seeds; std divides by n - 1, and is None for a single run."""
    groups: dict[str, list[Mapping[str, float]]] = {}
    for run, metrics in results.items():
        groups.setdefault(run.group, []).append(metrics)
    summary: dict[str, dict[str, dict[str, Any]]] = {}
    for group, members in groups.items():
        summary[group] = {}
        for name in dict.fromkeys(name for metrics in members for name in metrics):
            values = [metrics[name] for metrics in members if name in metrics]
            spread = stdev(values) if len(values) > 1 else None
            summary[group][name] = {"mean": fmean(values), "std": spread, "n": len(values)}
    return summary


def sweep_table(summary: Mapping[str, Mapping[str, Mapping[str, Any]]], described: Metrics) -> Table:
    """Return one row for each metric of the test split, and one column for each group of runs."""
    counts = [max((metric["n"] for metric in metrics.values()), default=0) for metrics in summary.values()]
    heads = [f"{group or 'all'} ({counted(count, 'run')})" for group, count in zip(summary, counts, strict=True)]
    table = Table("test split, mean ± std", *heads, box=None, padding=(0, 3, 0, 0))
    for name in dict.fromkeys(name for metrics in summary.values() for name in metrics):
        found = [metrics.get(name) for metrics in summary.values()]
        cells = [described[name].text(own["mean"], own["std"]) if own else "" for own in found]
        table.add_row(described[name].title, *cells)
    return table


def plan_sweep(overrides: Sequence[str], hp: str | None, verb: str = "train") -> tuple[str, list[SweptRun], str]:
    """Return the sweep's name, its runs, and the words that continue the runs if added to the command."""
    expanded, configs = load_sweep(overrides, hp, verb)
    base, names = configs[0].run_id or new_run_id(), [config.run_id for config in configs]
    runs, called = [], [name or base for name in names]
    if len(set(names)) < len(names) or len(names) == 1:  # Otherwise run_id is swept and names each run.
        numbered = [f"{name}-{number}" for number, name in enumerate(called)]  # Names of earlier versions of noether.
        begun = is_run(configs[0].output_path / numbered[0])
        called = numbered if begun else run_names(called, varied(expanded))
    for config, words, differs, run_id in zip(configs, expanded, varied(expanded), called, strict=True):
        placement = plan_run(config).placement
        # Each process of a launcher would start its own sweep, or all runs would meet in the same store.
        if len(placement.workers) != placement.world_size or placement.endpoint.served_by:
            raise RequestError("sweep-inside-a-launcher", "a sweep starts its runs itself, one after another",
                               seen=f"{placement.launcher} has placed {placement.world_size} ranks",
                               expected="one process for the whole sweep; on a cluster, a job array",
                               fix="noether submit -m …      (or one value for each setting)")  # fmt: skip
        target = find_target(config.model_copy(update={"run_id": run_id}), whole=False)
        kept = [text for text in words if not text.lstrip("+").startswith("run_id=")]
        runs.append(SweptRun(target.folder, (*kept, f"run_id={override_value(run_id)}"), tuple(differs)))
    return base, runs, "resume=auto" if len(set(names)) > 1 else f"run_id={base} resume=auto"


def train_apart(words: Sequence[str], read: Callable[[IO[bytes]], None] | None = None, **options: Any) -> int:
    """Run `noether train WORDS` in its own process, pass signals on to that process, and return its exit code.

    If this process is killed, the run saves and stops. options: arguments of `Popen`. read: a function that reads the
    stream for which `options` request a pipe (stderr, or stdout combined with stderr).
    """
    command = [sys.executable, "-m", "noether", "train", *words]
    process = subprocess.Popen(command, preexec_fn=partial(set_death_signal, signal.SIGTERM), **options)

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    reader = threading.Thread(target=read, args=(process.stdout or process.stderr,), daemon=True) if read else None
    # Only the main thread receives signals; `noether cancel` stops a run that another thread started.
    with stops_handled(forward) if threading.current_thread() is threading.main_thread() else nullcontext():
        if reader:
            reader.start()
        code = process.wait()
    if reader:
        reader.join(READ_S)
    return code if code >= 0 else signal_code(-code)

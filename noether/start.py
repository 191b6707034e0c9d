"""From a configuration to workers: the data is there, the folder can be written, the plan is shown; then it starts."""

import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noether.config.compose import dump_config, load_config
from noether.config.distributed import with_environment
from noether.config.schema import RunConfig
from noether.config.suggest import nearest
from noether.data.build import prepare_data
from noether.distributed.deadline import find_deadline
from noether.errors import ExitCode, RequestError
from noether.evaluation.request import EvaluateRequest, ExportRequest, PredictRequest
from noether.launch.identity import configuration_digest, run_identity
from noether.launch.placement import Placement, RunTerms, Timeouts
from noether.launch.process_facts import NOTHING_KNOWN
from noether.launch.run import run_placement
from noether.launch.spawner import warm_up
from noether.plan import RunPlan, plan_run, render_plan
from noether.provenance import describe_environment
from noether.run_folder import RunFolder, existing_run, refusals_told, write_json, write_whole
from noether.run_process import job_of_task, record_exit_code, record_process
from noether.tracking.console import Console
from noether.training.checkpoint_files import (
    CheckpointFolder,
    list_checkpoints,
    remove_leftovers,
    selected_checkpoint,
)
from noether.training.fence import take_fence
from noether.training.request import TrainRequest
from noether.training.resume import StartingPoint, find_start

SPLITS = ("test", "validation", "train")


def train_here(config: RunConfig) -> int:
    """Trains on the workers that this process answers for, and returns the exit code of the run."""
    started = time.time()
    plan = plan_run(config)
    placement = plan.placement
    if placement.workers[0].rank > 0:
        return _join(config, plan)
    console = Console(None, speaks=True)
    try:
        start = find_start(config, console.warn)
        start.folder.check_writable()
        if len(placement.workers) > 1:
            warm_up()  # The fork server imports torch while this process shows the plan and looks after the data.
        console.say(*render_plan(plan), "", sep="\n")
        data = _prepare_data(config, console)
        # Last, so that a request that is refused leaves no empty folder among the runs.
        start.folder.create()
        with refusals_told(start.folder.path):
            start = replace(start, fence=take_fence(start.folder, placement.attempt))
            if start.checkpoint is None:
                _record(config, plan, start)
        remove_leftovers(start.folder.checkpoints)
    except RequestError as refusal:
        if len(placement.workers) == placement.world_size:
            raise
        # Ranks of other processes are on their way to the meeting point: they must hear it, not wait for it.
        request = TrainRequest(config, refusal, None, plan.as_dict())
        return _run(placement, request, Path(tempfile.mkdtemp(prefix="noether-")))
    console.say(f"run    {start.folder.path}")
    for change in start.changes:
        console.say(f"goes on with another {change}")
    deadline = find_deadline(config.trainer.timeout_min, config.slurm.timeout_min, os.environ, started=started)
    if deadline is not None:
        console.say(f"limit  {deadline.describe()}: the run stops before it, with everything saved")
    request = TrainRequest(config, start, data, plan.as_dict(), deadline)
    process = record_process(start.folder, job_of_task() if placement.launcher == "slurm" else None)
    code = _run(placement, request, start.folder.logs)
    record_exit_code(start.folder, process, code)
    return code


def _join(config: RunConfig, plan: RunPlan) -> int:
    """Answers for ranks above 0 alone: what the run's folder is, and whether there is a run, rank 0 says."""
    with tempfile.TemporaryDirectory(prefix="noether-") as scratch:
        data, refusal = None, None
        try:
            data = _prepare_data(config, Console(None, speaks=False))
        except RequestError as error:
            refusal = error  # The others are on their way: they must hear it.
        return _run(plan.placement, TrainRequest(config, refusal, data, plan.as_dict()), Path(scratch))


def _run(placement: Placement, request: TrainRequest, log_folder: Path) -> int:
    terms = run_terms(request.config, placement, os.environ)
    return run_placement(placement, "noether.training.train.train_worker", request, log_folder, terms)


def run_terms(config: RunConfig, placement: Placement, environ: Mapping[str, str]) -> RunTerms:
    """Returns what every rank of a run is told alike.

    Raises:
        RequestError: DISTRIBUTED_TIMEOUT_S is no number of seconds.
    """
    digest = configuration_digest(config.model_dump(mode="json"))
    kind = placement.workers[0].device.kind
    identity = run_identity(placement.launcher, placement.world_size, placement.attempt, environ, digest, kind)
    timeouts = Timeouts(**with_environment(config.distributed, environ).model_dump())
    return RunTerms(identity, timeouts, config.output_path.expanduser().absolute())


def dry_run_here(config: RunConfig, *, as_json: bool) -> int:
    """Builds everything, makes one update and one evaluation batch, and says what it took. Leaves nothing."""
    plan = plan_run(config)
    console = Console(None, speaks=not as_json and plan.placement.workers[0].rank == 0)
    find_start(config, console.warn)
    RunFolder(config.output_path.expanduser()).check_writable()
    console.say(*render_plan(plan), "", sep="\n")
    data = _prepare_data(config, console)
    with tempfile.TemporaryDirectory(prefix="noether-dry-run-") as scratch:
        start = StartingPoint(RunFolder(Path(scratch)), None)
        request = TrainRequest(config, start, data, plan.as_dict(), quiet=as_json)
        target = "noether.training.dry_run.dry_run_worker"
        terms = run_terms(config, plan.placement, os.environ)
        code = run_placement(plan.placement, target, request, Path(scratch) / "logs", terms)
        if code == ExitCode.DONE and as_json:
            print(json.dumps(json.loads((Path(scratch) / "dry_run.json").read_text()), indent=2))
    return code


def evaluate_here(
    run: str,
    *,
    split: str = "test",
    weights: str | None = None,
    checkpoint: str | None = None,
    as_json: bool = False,
    vtk: bool = False,
) -> int:
    """Evaluates a run on one device of this machine, prints the figures and keeps them for `noether report`.

    Raises:
        RequestError: where there is no such run, split, kind of weights or checkpoint.
    """
    folder = existing_run(run)
    config = _config_here(folder)
    _one_of("split", split, SPLITS)
    if split == "validation" and not config.dataset.validation_fraction:
        raise RequestError(
            "the run has no validation split",
            seen="dataset.validation_fraction=0.0",
            expected="test or train",
            fix="--split test",
        )
    chosen, weights = _choose_weights(folder, checkpoint, weights)
    request = EvaluateRequest(config, folder.path, prepare_data(config), chosen.path, weights, split, as_json, vtk)
    placement = _place_here(config)
    return run_placement(placement, "noether.evaluation.again.evaluate_worker", request, folder.logs)


def predict_here(
    run: str,
    *,
    mesh: str,
    out: str,
    volume: str | None = None,
    truth: str | None = None,
    scale: str = "1",
    chunk: str = "16384",
    weights: str | None = None,
    checkpoint: str | None = None,
) -> int:
    """Predicts a run's fields on a shape of one's own, on one device of this machine.

    Raises:
        RequestError: there is no such run or file, or the shape is nothing like what was trained on.
    """
    from noether.evaluation.vtk_output import check_suffix

    folder = existing_run(run)
    files = {name: Path(path).expanduser() if path else None for name, path in
             (("mesh", mesh), ("volume", volume), ("truth", truth))}  # fmt: skip
    for name, path in files.items():
        if path is not None and not path.is_file():
            raise RequestError(f"no file {path}", seen=f"--{name} {path}", expected="a file")
    check_suffix(target := Path(out).expanduser())
    numbers = {"scale": _number("scale", scale, float), "chunk": _number("chunk", chunk, int)}
    chosen, weights = _choose_weights(folder, checkpoint, weights)
    config = _config_here(folder)
    request = PredictRequest(
        config,
        chosen.path,
        weights,
        files["mesh"] or Path(mesh),
        target,
        files["volume"],
        files["truth"],
        float(numbers["scale"]),
        int(numbers["chunk"]),
    )
    placement = _place_here(config)
    return run_placement(placement, "noether.evaluation.predict.predict_worker", request, folder.logs)


def export_here(
    run: str, out: str, *, program: bool = True, weights: str | None = None, checkpoint: str | None = None
) -> int:
    """Exports a run's model, on the CPU of this machine.

    Raises:
        RequestError: there is no such run or checkpoint, or `out` is a folder with other things in it.
    """
    folder, target = existing_run(run), Path(out).expanduser()
    chosen, weights = _choose_weights(folder, checkpoint, weights)
    if target.exists() and (not target.is_dir() or any(target.iterdir())) and not (target / "model.json").is_file():
        raise RequestError(
            f"{target} is there and no export",
            seen="files of another kind",
            expected="a new folder, or one with an earlier export",
            fix=f"noether export {run} {target}-export",
        )
    config = _config_here(folder).model_copy(update={"accelerator": "cpu"})
    request = ExportRequest(config, chosen.path, weights, target, program)
    placement = _place_here(config)
    return run_placement(placement, "noether.evaluation.export.export_worker", request, folder.logs)


def _config_here(folder: RunFolder) -> RunConfig:
    """A run's configuration, for one device of this machine, which need not be the one that trained."""
    config = load_config(hp=folder.config)
    here = {"accelerator": "auto", "devices": "1"}
    config = config.model_copy(update=here | dict.fromkeys(("master_port", "nodes", "node_rank", "master_addr")))
    trainer = config.trainer.model_copy(update={"max_batch_size": None})
    return config.model_copy(update={"trainer": trainer})


def _place_here(config: RunConfig) -> Placement:
    """Places one worker on this machine, inside whatever job or launcher: its ranks are for training."""
    visible = {name: os.environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in os.environ}
    return plan_run(config, environ=visible, facts=NOTHING_KNOWN).placement


def _choose_weights(folder: RunFolder, checkpoint: str | None, weights: str | None) -> tuple[CheckpointFolder, str]:
    chosen = _choose_checkpoint(folder, checkpoint)
    have = ["ema", "raw"] if (chosen.path / "ema.safetensors").is_file() else ["raw"]
    weights = _one_of("weights", weights or have[0], have)
    damage = chosen.damage()
    if damage:
        raise RequestError(f"checkpoint {chosen.path} is damaged", seen=damage, expected="files as they were written")
    return chosen, weights


def _number(name: str, text: str, kind: type[int] | type[float]) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = kind(0)
    if not 0 < value < float("inf"):
        raise RequestError(f"--{name} is a positive number", seen=f"--{name} {text}", expected="above 0")
    return value


def _one_of(name: str, value: str, known: "list[str] | tuple[str, ...]") -> str:
    if value in known:
        return value
    raise RequestError(
        f"no such {name}: {value}",
        seen=f"--{name} {value}",
        expected=" or ".join(known),
        fix=f"--{name} {nearest(value, known) or known[0]}",
    )


def _choose_checkpoint(folder: RunFolder, name: str | None) -> CheckpointFolder:
    found = {checkpoint.path.name: checkpoint for checkpoint in list_checkpoints(folder.checkpoints)}
    if not found:
        raise RequestError(
            f"{folder.path} has no checkpoint yet",
            seen=f"nothing in {folder.checkpoints}",
            expected="a run that has written a checkpoint",
        )
    named = {"best": selected_checkpoint(folder.checkpoints), "latest": list(found.values())[-1], **found}
    return named[_one_of("checkpoint", name or "best", tuple(named))]


def _record(config: RunConfig, plan: RunPlan, start: StartingPoint) -> None:
    """Writes what was asked, planned and found before the first worker starts, so that a crash leaves it."""
    write_json(start.folder.plan, plan.as_dict())
    write_json(start.folder.environment, describe_environment())
    write_whole(start.folder.config, dump_config(config))  # Last: from now on there is a run of this name.


def _prepare_data(config: RunConfig, console: Console) -> Path | None:
    """Makes or checks the data, with a bar while it is made."""
    progress = Progress(
        TextColumn("making the data set"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("shapes, left"),
        TimeRemainingColumn(),
        console=console.terminal,
        disable=not console.is_live,
        transient=True,
    )
    bar = progress.add_task("data", total=None)
    announced = False

    def report(done: int, total: int) -> None:
        nonlocal announced
        if not announced:
            progress.start()
            if not console.is_live:
                console.say(f"making the data set: {total} shapes")
            announced = True
        progress.update(bar, completed=done, total=total)

    try:
        return prepare_data(config, report)
    finally:
        progress.stop()

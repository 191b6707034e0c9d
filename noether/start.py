"""From a configuration to workers: the data is there, the folder can be written, the plan is shown; then it starts."""

import json
import tempfile
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from noether.config.compose import dump_config, load_config
from noether.config.schema import RunConfig
from noether.config.suggest import nearest
from noether.data.build import prepare_data
from noether.errors import ExitCode, RequestError
from noether.evaluation.request import EvaluateRequest
from noether.launch.placement import Placement
from noether.launch.run import run_placement
from noether.launch.spawner import warm_up
from noether.plan import RunPlan, plan_run, render_plan
from noether.provenance import describe_environment
from noether.run_folder import RunFolder, existing_run, write_json
from noether.tracking.console import Console
from noether.training.checkpoint_files import CheckpointFolder, list_checkpoints, selected_checkpoint
from noether.training.request import TrainRequest
from noether.training.resume import StartingPoint, find_start

SPLITS = ("test", "validation", "train")


def train_here(config: RunConfig) -> int:
    """Trains on the workers that this process answers for, and returns the exit code of the run."""
    plan = plan_run(config)
    placement = plan.placement
    if placement.workers[0].rank > 0:
        return _join(config, plan)
    console = Console(None, speaks=True)
    try:
        start = find_start(config, console.warn)
        start.folder.create()
    except RequestError as refusal:
        if len(placement.workers) == placement.world_size:
            raise
        # Ranks of other processes are on their way to the meeting point: they must hear it, not wait for it.
        request = TrainRequest(config, refusal, None, plan.as_dict())
        return _run(placement, request, Path(tempfile.mkdtemp(prefix="noether-")))
    if len(placement.workers) > 1:
        warm_up()  # The fork server imports torch while this process shows the plan and looks after the data.
    console.say(*render_plan(plan), "", sep="\n")
    data = _prepare_data(config, console)
    if start.checkpoint is None:
        _record(config, plan, start)
    console.say(f"run    {start.folder.path}")
    return _run(placement, TrainRequest(config, start, data, plan.as_dict()), start.folder.logs)


def _join(config: RunConfig, plan: RunPlan) -> int:
    """Answers for ranks above 0 alone: what the run's folder is, and whether there is a run, rank 0 says."""
    with tempfile.TemporaryDirectory(prefix="noether-") as scratch:
        data = _prepare_data(config, Console(None, speaks=False))
        return _run(plan.placement, TrainRequest(config, None, data, plan.as_dict()), Path(scratch))


def _run(placement: Placement, request: TrainRequest, log_folder: Path) -> int:
    return run_placement(placement, "noether.training.train.train_worker", request, log_folder)


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
        code = run_placement(plan.placement, "noether.training.dry_run.dry_run_worker", request, Path(scratch) / "logs")
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
) -> int:
    """Evaluates a run on one device of this machine, prints the figures and keeps them for `noether report`.

    Raises:
        RequestError: where there is no such run, split, kind of weights or checkpoint.
    """
    folder = existing_run(run)
    config = load_config(hp=folder.config)
    # The machine that evaluates need not be the one that trained.
    here = {"accelerator": "auto", "devices": "1"}
    config = config.model_copy(update=here | dict.fromkeys(("master_port", "nodes", "node_rank", "master_addr")))
    config = config.model_copy(update={"trainer": config.trainer.model_copy(update={"max_batch_size": None})})
    _one_of("split", split, SPLITS)
    if split == "validation" and not config.dataset.validation_fraction:
        raise RequestError(
            "the run has no validation split",
            seen="dataset.validation_fraction=0.0",
            expected="test or train",
            fix="--split test",
        )
    chosen = _choose_checkpoint(folder, checkpoint)
    have = ["ema", "raw"] if (chosen.path / "ema.safetensors").is_file() else ["raw"]
    weights = _one_of("weights", weights or have[0], have)
    damage = chosen.damage()
    if damage:
        raise RequestError(f"checkpoint {chosen.path} is damaged", seen=damage, expected="files as they were written")
    request = EvaluateRequest(config, folder.path, prepare_data(config), chosen.path, weights, split, as_json)
    placement = plan_run(config).placement
    return run_placement(placement, "noether.evaluation.again.evaluate_worker", request, folder.logs)


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
    start.folder.config.write_text(dump_config(config))
    write_json(start.folder.plan, plan.as_dict())
    write_json(start.folder.environment, describe_environment())


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

"""Evaluating a run that was made before: any split, any weights, any checkpoint."""

import json
from dataclasses import dataclass
from pathlib import Path

from noether.config.compose import load_config
from noether.config.schema import RunConfig
from noether.config.suggest import nearest
from noether.data.build import prepare_data
from noether.errors import ExitCode, RequestError
from noether.launch.placement import WorkerContext
from noether.launch.run import run_placement
from noether.plan import plan_run
from noether.run_folder import RunFolder, existing_run, write_json
from noether.training.checkpoint_files import CheckpointFolder, list_checkpoints, selected_checkpoint

SPLITS = ("test", "validation", "train")


@dataclass(frozen=True)
class EvaluateRequest:
    """What is evaluated."""

    config: RunConfig
    folder: Path
    data: Path | None
    checkpoint: Path
    weights: str
    split: str
    as_json: bool


def evaluate_again(
    run: str,
    *,
    split: str = "test",
    weights: str | None = None,
    checkpoint: str | None = None,
    as_json: bool = False,
) -> int:
    """Evaluates a run on one device of this machine, prints the figures and draws the report anew.

    Raises:
        RequestError: where there is no such run, split, kind of weights or checkpoint.
    """
    folder = existing_run(run)
    config = load_config(hp=folder.config)
    # The machine that evaluates need not be the one that trained.
    config = config.model_copy(update={"accelerator": "auto", "devices": "1", "master_port": None})
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


def evaluate_worker(context: WorkerContext, request: EvaluateRequest) -> int:
    """Evaluates on one device and writes the figures where the report finds them."""
    from noether.distributed.group import joined_group
    from noether.evaluation.final import EvaluatedWeights, evaluate_run
    from noether.evaluation.tables import result_tables
    from noether.tasks.fields import FieldsTask
    from noether.tracking.console import Console
    from noether.training.precision import Precision
    from noether.training.problem import build_problem
    from noether.training.state import load_task_state, load_weights

    config, folder, checkpoint = (
        request.config,
        RunFolder(request.folder),
        CheckpointFolder(request.checkpoint),
    )
    made = list_checkpoints(folder.checkpoints)[-1].updates
    with joined_group(context) as group:
        precision = Precision(config.trainer.precision, group.device.type)
        problem = build_problem(config, request.data, group.device, precision)
        load_task_state(problem.task, checkpoint)
        load_weights(problem.model, checkpoint, request.weights)
        result = evaluate_run(
            config,
            problem,
            EvaluatedWeights(problem.model, request.weights, checkpoint.path.name, made),
            request.split,
            folder,
            group,
            precision,
            batch_size=config.trainer.evaluation_batch_size or config.trainer.effective_batch_size,
            world_size=checkpoint.meta()["world_size"],
        )
    if request.split == "test":
        write_json(folder.result, result)
    else:
        write_json(folder.evaluation / f"{request.split}.json", result)
    if request.as_json:
        print(json.dumps(result, indent=2))
    else:
        fields = problem.task.fields if isinstance(problem.task, FieldsTask) else {}
        console = Console(None, speaks=True)
        for table in result_tables(result, fields):
            console.say(table)
    return ExitCode.DONE

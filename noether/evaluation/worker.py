"""Evaluating a run that was made before: what the worker of `noether evaluate` does."""

from collections.abc import Mapping
from typing import Any

from noether.checkpoints.format import CheckpointFolder, list_checkpoints
from noether.checkpoints.state import load_task_state, load_weights
from noether.common.console import Console
from noether.common.strict_json import strict_json
from noether.distributed.group import joined_group
from noether.errors import ExitCode, RequestError
from noether.evaluation.evaluate import build_evaluator
from noether.evaluation.final import EvaluatedWeights, RunEvaluation
from noether.evaluation.request import EvaluateRequest
from noether.evaluation.tables import result_tables
from noether.learning.precision import Precision
from noether.learning.setup import build_problem
from noether.runs.folder import refusals_told
from noether.runs.records import write_record
from noether.workers.context import WorkerContext


def samples_of_a_device(meta: Mapping[str, Any]) -> int:
    """Returns how many samples a device of the run held at once, from a checkpoint's meta.json."""
    # Checkpoints of older versions do not say; a rank's share is the most that it can have been.
    return int(meta.get("micro_batch_size") or max(1, meta["effective_batch_size"] // meta["world_size"]))


def evaluate_worker(context: WorkerContext, request: EvaluateRequest) -> int:
    """Evaluates on one device and writes the figures where the report finds them."""
    config, folder, weights = request.chosen.config, request.chosen.folder, request.chosen.weights
    checkpoint = CheckpointFolder(request.chosen.checkpoint)
    made = list_checkpoints(folder.checkpoints)[-1].updates
    with joined_group(context) as group:
        precision = Precision(config.trainer.precision, group.device.type)
        problem = build_problem(config, request.data, group.device, precision)
        if request.vtk and not problem.task.fields:
            raise RequestError(
                "only fields at points are written for ParaView",
                seen=f"--vtk, task.kind={config.task.kind}",
                expected="a run that predicts fields at points",
                fix="leave out --vtk",
            )
        load_task_state(problem.task, checkpoint)
        load_weights(problem.model, checkpoint, weights)
        batch_size = samples_of_a_device(checkpoint.meta())
        evaluator = build_evaluator(config, problem, group, precision, batch_size=batch_size)
        evaluation = RunEvaluation(problem, evaluator, folder, checkpoint.world_size, vtk=request.vtk)
        chosen = EvaluatedWeights(problem.model, weights, checkpoint.path.name, made)
        result = evaluation.result(chosen, request.split)
    with refusals_told(folder.path):
        write_record(folder.result if request.split == "test" else folder.evaluation / f"{request.split}.json", result)
    if request.as_json:
        print(strict_json(result, indent=2))
    else:
        console = Console(None, speaks=True)
        for table in result_tables(result, problem.task.fields):
            console.say(table)
        if files := result.get("files"):
            console.say("\nthe best, the median and the worst cases, for ParaView:", *files, sep="\n")
    return ExitCode.DONE

"""The model of a run that is evaluated, asked or exported: a checkpoint, on one device here. No torch here."""

import os
import tempfile
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from noether.checkpoints.format import CheckpointFolder
from noether.checkpoints.named import BEST, named_checkpoint
from noether.checkpoints.own_settings import own_settings, say_of_settings
from noether.checkpoints.resume_rules import ResumeRule, compare_configs
from noether.common.suggest import one_of
from noether.config.schema import RunConfig
from noether.launch.detect.process_facts import NOTHING_KNOWN
from noether.launch.planning.plan import plan_run
from noether.launch.processes.context import RunInfo
from noether.launch.processes.run import run_placement
from noether.runs.folder import RunFolder, existing_run, named_run
from noether.runs.trust import approved_code


@dataclass(frozen=True)
class ChosenModel:
    """A run's model: a checkpoint, "ema" or "raw" for its weights, and the configuration for one device here.

    code: the dotted paths of the configuration that may be imported.
    """

    folder: RunFolder
    config: RunConfig
    code: Collection[str]
    checkpoint: CheckpointFolder
    weights: str


@dataclass(frozen=True)
class WantedModel:
    """Which model of which run, or of RUN/checkpoints/NAME.

    checkpoint None: the one that `run` names, else the best. weights None: EMA weights if it has them.
    """

    run: str
    checkpoint: str | None
    weights: str | None
    trust: bool


def choose_model(wanted: WantedModel) -> ChosenModel:
    """Finds a run's model and reads the whole checkpoint once, to see that it is intact.

    Raises:
        RequestError: there is no such run, checkpoint or kind of weights, it is damaged, or the run names code that
            is not trusted.
    """
    run, name = named_run(wanted.run)
    folder = existing_run(run)
    chosen = named_checkpoint(folder, wanted.checkpoint or name, "--checkpoint {}" + BEST)
    layer, config = own_settings(folder, chosen)
    code = approved_code(folder, config, layer.file or folder.config, wanted.trust, trains=False)
    _say_changes(folder, chosen, config)
    weights = one_of("weights", wanted.weights or chosen.weights[0], chosen.weights)
    return ChosenModel(folder, _for_one_device(config), code, chosen, weights)


def _say_changes(folder: RunFolder, checkpoint: CheckpointFolder, config: RunConfig) -> None:
    for change in compare_configs(checkpoint.meta()["config"], config):
        if change.rule is not ResumeRule.FREE:
            say_of_settings(f"{folder.config} is not what the checkpoint was trained with: {change}")


def _for_one_device(config: RunConfig) -> RunConfig:
    """The configuration for one device of this machine, which need not be the one that trained."""
    trainer = config.trainer.model_copy(update={"max_batch_size": None})
    here = {"accelerator": "auto", "devices": "1", "trainer": trainer}
    return config.model_copy(update=here | dict.fromkeys(("master_port", "nodes", "node_rank", "master_addr")))


def run_here(config: RunConfig, target: str, request: Any) -> int:
    """Runs one worker on this machine, inside whatever job or launcher: its ranks are for training."""
    kept = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS")
    visible = {name: value for name, value in os.environ.items() if name in kept}
    plan = plan_run(config, environ=visible, facts=NOTHING_KNOWN)
    # The run's own logs stay as they are, and its folder may be one that can only be read.
    with tempfile.TemporaryDirectory(prefix="noether-") as scratch:
        return run_placement(plan.placement, target, request, Path(scratch), RunInfo(logs_stay=False))

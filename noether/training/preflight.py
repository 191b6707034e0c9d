"""Refuses, before anything starts, what `train` would refuse later. No torch but for a user's own components."""

import os
from pathlib import Path

from noether.checkpoints.resume import find_start
from noether.common.components import find_component
from noether.common.container import image_engine
from noether.config.dataset import CustomDatasetConfig
from noether.config.model import CustomModelConfig
from noether.config.schema import RunConfig
from noether.config.task import CustomTaskConfig
from noether.data.build import check_data
from noether.planning.compiler import refuse_without_compiler
from noether.planning.plan import RunPlan


def check_as_train_does(config: RunConfig, plan: RunPlan) -> None:
    """Checks the run's folder, its data, its compiler and its own components on this machine.

    Raises:
        RequestError: as `train` would, with the same words.
    """
    find_start(config, lambda warning: None).folder.check_writable()
    check_data(config)
    check_compiler(config, plan)
    check_own_components(config)


def check_compiler(config: RunConfig, plan: RunPlan) -> None:
    """Refuses trainer.compile=true where this machine has no compiler for it."""
    if config.trainer.compile:
        refuse_without_compiler(plan.placement.workers[0].device.kind, os.environ, image_engine(os.environ))


def check_own_components(config: RunConfig) -> None:
    """Imports the user's own data set, model and task, and holds their options against their constructors.

    Components that come with noether are checked by the schema already.

    Raises:
        RequestError: no such module or class, or options that do not fit.
    """
    if isinstance(config.dataset, CustomDatasetConfig):
        given: dict[str, str | Path | None] = {"split": "train", "root": config.dataset_root}
        find_component("dataset", config.dataset.kind, {}, config.dataset.options(), given=given)
    if isinstance(config.model, CustomModelConfig):
        from torch import nn

        adapters = ("input", "output")  # Not the constructor's.
        options = {name: value for name, value in config.model.options().items() if name not in adapters}
        find_component("model", config.model.kind, {}, options, base=nn.Module)
    if isinstance(config.task, CustomTaskConfig):
        from noether.tasks.base import Task

        find_component("task", config.task.kind, {}, config.task.options(), base=Task)

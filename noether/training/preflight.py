"""Find, before a run starts, faults that would end it later. Only checks of a user's own components import torch."""

import importlib.util
import os
import runpy
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from noether.checkpoints.named import named_weights
from noether.checkpoints.resume import ResumeTarget
from noether.common.container import image_engine
from noether.common.dotted_path import code_granted
from noether.common.errors import RequestError
from noether.common.safe_open import StampedFile
from noether.config.optimizer import CustomOptimizerConfig, CustomScheduleConfig
from noether.config.schema import RunConfig
from noether.config.sections_by_kind import CustomDatasetConfig, CustomModelConfig, CustomTaskConfig
from noether.core.data.build import check_data, check_stream_length, own_dataset
from noether.launch.detect.placement import Placement
from noether.launch.plan import RunPlan
from noether.launch.processes.spawner import call_with_torch
from noether.launch.processes.worker import changed_environment, openmp_defaults

# TorchInductor calls a C++ compiler for a CPU; Triton calls a C compiler for the launchers of its kernels on a GPU.
CPP_COMPILERS, C_COMPILERS = ("g++", "clang++"), ("gcc", "clang", "cc")


def check_start(config: RunConfig, target: ResumeTarget) -> StampedFile | None:
    """Refuse a read-only disk, missing initial weights or unusable data; return the weights' verified file, if any."""
    target.check_writable()
    begins = target.checkpoint is None and config.initial_weights is not None
    weights = named_weights(str(config.initial_weights)) if begins else None
    check_data(config)
    return weights


def check_own_code_of_ranks(config: RunConfig, plan: RunPlan) -> None:
    """Run `check_own_code` in the process that imports torch: the ranks' fork server, or this process for one rank."""
    if not config.own_code():
        return
    placement, steps = plan.placement, plan.batch.accumulation_steps
    if len(placement.workers) > 1:
        call_with_torch(check_own_code, config, steps)
        return
    # Before torch is loaded, set a rank's environment. Open no CUDA context, because it would not survive a fork.
    threads = {"OMP_NUM_THREADS": str(placement.cpus.threads)} if placement.cpus else {}
    early = {"TORCH_CPP_LOG_LEVEL": "ERROR", "PYTORCH_NVML_BASED_CUDA_CHECK": "1", **openmp_defaults(os.environ)}
    with changed_environment({**early, **threads, **os.environ}):
        check_own_code(config, steps)


def check_software(config: RunConfig, placement: Placement) -> None:
    """Refuse a torch that does not fit this host's devices; refuse trainer.compile if the compiler is missing."""
    _check_torch(placement)
    if config.trainer.compile:
        refuse_without_compiler(placement.workers[0].device.kind, os.environ, image_engine(os.environ))


def _check_torch(placement: Placement) -> None:
    """Refuse GPUs if torch is built for the CPU only, because it would raise an error on every rank."""
    found = importlib.util.find_spec("torch")  # Finds torch without importing it.
    if placement.workers[0].device.kind != "cuda" or found is None or found.origin is None:
        return
    built = runpy.run_path(str(Path(found.origin).with_name("version.py")))
    if built.get("cuda") or built.get("hip"):
        return
    raise RequestError("torch-without-cuda", "the ranks have GPUs, but torch is built for the CPU only",
                       seen=f"torch {built.get('__version__')}; {placement.reasons.get('workers', 'GPUs')}",
                       expected="a torch built with CUDA", fix="pip install torch --index-url "
                       "https://download.pytorch.org/whl/cu126      (or accelerator=cpu)")  # fmt: skip


def refuse_without_compiler(
    device_kind: str, environ: Mapping[str, str], engine: str, which: Callable[[str], str | None] = shutil.which
) -> None:
    """Refuse trainer.compile if its compiler is not installed; the variables CXX and CC choose another compiler.

    engine: the container engine, for the message, if this runs in one of the project's images.
    """
    variable, language, known = ("CC", "C", C_COMPILERS) if device_kind == "cuda" else ("CXX", "C++", CPP_COMPILERS)
    asked = environ.get(variable)
    if any(which(name) for name in ([asked] if asked else known)):
        return
    fix = f"apt-get install {known[0]}      (or {variable}=COMPILER; or trainer.compile=false)"
    if engine:
        fix = (
            "trainer.compile=false      (the CUDA images have a C compiler, for GPUs; no image has a C++ compiler,\n"
            f"which a CPU needs: build an image FROM this one with {known[0]})"
        )
    raise RequestError(
        "no-compiler", f"trainer.compile=true needs a {language} compiler",
        seen=f"{variable}={asked}, which does not exist" if asked else f"none of {', '.join(known)} on the PATH",
        expected=f"a {language} compiler: torch.compile writes {language} for device {device_kind} and compiles it",
        fix=fix,
    )  # fmt: skip


def check_own_code(config: RunConfig, accumulation_steps: int) -> None:
    """Import the user's own components and callbacks, and check their methods and options, without building any.

    The schema has already checked the options of noether's components. Errors are those of `Component.find` and
    `callback_classes`.
    """
    if not config.own_code():
        return
    from noether.core.models.build import model_component
    from noether.core.tasks.base import task_component
    from noether.training.callbacks import callback_classes
    from noether.training.optimizers import optimizer_component
    from noether.training.own_update import check_own_update
    from noether.training.schedules import find_schedule

    data, model, task = config.dataset, config.model, config.task
    optimizer, schedule = config.optimizer, config.schedule
    with code_granted(config.own_code()):
        if isinstance(data, CustomDatasetConfig):
            check_stream_length(own_dataset(data, "train", config.dataset_root).find(), config)
        if isinstance(model, CustomModelConfig):
            model_component(model.kind, model.options(), {"layout": None})[0].find()
        if isinstance(task, CustomTaskConfig):
            check_own_update(task_component(task.kind, task.options()).find(), config.trainer, accumulation_steps)
        if isinstance(optimizer, CustomOptimizerConfig):
            optimizer_component(optimizer, []).find()
        if isinstance(schedule, CustomScheduleConfig):
            find_schedule(schedule, optimizer.learning_rate, config.trainer.max_updates or 1000)
        callback_classes(config.trainer.callbacks)

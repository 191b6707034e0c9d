"""Refuses to fall back to the CPU silently if GPUs were granted to this process but no driver answers."""

from collections.abc import Mapping

from noether.common.container import container_line
from noether.common.errors import RequestError
from noether.launch.detect.process_facts import ProcessFacts

# The step's variables before the job's. Each is a number of GPUs as Slurm writes it, or a list of their indices, where
# 0 is a GPU.
GRANTING = {
    "SLURM_STEP_GPUS": "list",
    "SLURM_JOB_GPUS": "list",
    "SLURM_GPUS_ON_NODE": "number",
    "SLURM_GPUS_PER_NODE": "number",
    "SLURM_GPUS_PER_TASK": "number",
    "NVIDIA_VISIBLE_DEVICES": "list",
}
# Masks that hide every device: CUDA itself reads "" and "-1" so; Slurm sets NoDevFiles in a step without GPUs.
NO_DEVICES = ("", "-1", "NoDevFiles")
# "all" grants nothing by itself, as images set it for every start.
NOT_GRANTED = (*NO_DEVICES, "0", "void", "none", "all")
AMD_VARIABLES = ("ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")


def granted_gpus(environ: Mapping[str, str], facts: ProcessFacts) -> str:
    """Returns the evidence that this process was given NVIDIA GPUs, such as "SLURM_STEP_GPUS=0,1", or "".

    A mask that hides every device (an empty CUDA_VISIBLE_DEVICES, NoDevFiles) was set on purpose: no GPUs are granted.
    """
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    # In a step, Slurm sets the masks of every vendor unless gres.conf (Flags) says whose GPUs the nodes have.
    if facts.amd_driver or (mask is None and any(environ.get(name) for name in AMD_VARIABLES)):
        return ""
    if mask is not None and mask.strip() in NO_DEVICES:
        return ""
    if mask is not None:
        return f"CUDA_VISIBLE_DEVICES={mask}"
    for name, kind in GRANTING.items():
        value = environ.get(name, "")
        if value not in NOT_GRANTED or (value == "0" and kind == "list"):
            return f"{name}={value}"
    return "the kernel has NVIDIA GPUs (/proc/driver/nvidia/gpus)" if facts.nvidia_kernel else ""


def how_to_have_gpus(environ: Mapping[str, str], facts: ProcessFacts) -> str:
    """Returns the line that gives this process its GPUs: its container's option, else a command to check the driver."""
    option = "--nv" if facts.container == "apptainer" else "--gpus all"
    return container_line(facts.container, environ, option) or "nvidia-smi      (says why the driver does not answer)"


def refuse_silent_cpu(environ: Mapping[str, str], facts: ProcessFacts, absence: str) -> None:
    """Refuses `accelerator=auto` if GPUs were granted to this process but none answers.

    `absence` says why there are no devices: "no NVIDIA driver answers, …".

    Raises:
        RequestError: GPUs were granted. The fix shows how to make them visible, and accelerator=cpu to do without.
    """
    granted = granted_gpus(environ, facts)
    if not granted:
        return
    inside = f", in a {facts.container} container" if facts.container else ""
    raise RequestError(
        "granted-gpus-do-not-answer",
        "GPUs were granted to this process, but none answers",
        seen=(absence if granted in absence else f"{granted}; {absence}") + inside,
        expected="the NVIDIA driver" + (" in the container" if facts.container else "") + ", or accelerator=cpu",
        fix=f"{how_to_have_gpus(environ, facts)}\n"
        "accelerator=cpu      (or CUDA_VISIBLE_DEVICES= before the command: to use the CPU anyway)",
    )

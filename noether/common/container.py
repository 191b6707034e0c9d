"""Says which container this process is in, and which line starts it with what it lacks."""

import os
from collections.abc import Mapping
from pathlib import Path


def container_engine(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Returns "apptainer", "podman" or "docker", or "" outside of a container."""
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or (root / ".singularity.d").exists():
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "docker" if (root / ".dockerenv").exists() else ""


def container_line(engine: str, environ: Mapping[str, str], option: str) -> str:
    """Returns the line that starts this container with a further option: `docker run --gpus all …`.

    Args:
        engine: from `container_engine`; "" has no such line, and returns "".
        environ: where Apptainer names the image, and Slurm the step.
        option: what the line must have.
    """
    if not engine:
        return ""
    if engine != "apptainer":
        return f"{engine} run {option} …"
    image = os.path.basename(environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or "IMAGE.sif")
    srun = "srun " if environ.get("SLURM_JOB_ID") else ""
    return f"{srun}apptainer exec {option} {image} train …"

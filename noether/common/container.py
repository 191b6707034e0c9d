"""Detect the container this process runs in, and write the command that restarts it with a missing mount or option."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from noether.common.errors import NoetherError, RequestError
from noether.common.process_defaults import IMAGE_RECORD

NEVER_MOUNTED = ("", "bin", "boot", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr", "work")
"""First components of paths that no fix offers to mount: the host's root (""), system folders, and the image's own
folder `work`, on which a folder of the user is already mounted."""


def container_engine(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return "apptainer", "podman" or "docker", or "" outside of a container."""
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or (root / ".singularity.d").exists():
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "docker" if (root / ".dockerenv").exists() else ""


def image_engine(environ: Mapping[str, str]) -> str:
    """Return the container engine if this process is in the project's image, where commands differ; else ""."""
    return container_engine(environ) if IMAGE_RECORD.exists() else ""


def container_line(engine: str, environ: Mapping[str, str], option: str) -> str:
    """Return the command that starts this container with a further option (docker run --gpus all …); "" outside."""
    if not engine:
        return ""
    if engine != "apptainer":
        return f"{engine} run {option} …"
    srun = "srun " if environ.get("SLURM_JOB_ID") else ""
    return f"{srun}apptainer exec {option} {_image(environ)} train …"


def program_line(engine: str, words: Sequence[str]) -> str:
    """Return the command that runs a program of the image other than its entrypoint, such as `bash -c …`."""
    if engine == "apptainer":
        return f"apptainer exec IMAGE.sif {shlex.join(words)}"
    return f"{engine} run --entrypoint {words[0]} … IMAGE {shlex.join(words[1:])}".rstrip()


def fix_in_container(fix: str, mount: str, engine: str, environ: Mapping[str, str]) -> str:
    """Rewrite a fix so that it can be typed outside this container; a line before it mounts `mount`, if given.

    `mount` is a path that may be missing in the container or closed to its user; `engine` is from `container_engine`.
    """
    if not engine:
        return fix
    image = _image(environ)
    run = f"apptainer exec {image} " if engine == "apptainer" else f"{engine} run … IMAGE "
    fix = re.sub(r"(^|\n|(?<=srun )|(?<=--overlap )|(?<=or ))noether (?=[a-z])", lambda match: match[1] + run, fix)
    if not mount:
        return fix
    mount = os.path.abspath(mount)
    offered = mount.split("/")[1] not in NEVER_MOUNTED
    if engine == "apptainer":
        if not offered:
            return fix
        given = f"apptainer exec --bind {mount} {image} …      (a container sees only what is bound into it)"
    else:
        volume, what = (f"-v {mount}:{mount} ", ", and mounts the folder") if offered else ("", "")
        given = f'{engine} run --user "$(id -u):$(id -g)" {volume}…      (runs as you{what})'
    return f"{given}\n{fix}" if fix else given


def fix_for_container(error: NoetherError) -> NoetherError:
    """Return an error; in the project's image, rewrite its fix so that it can be typed outside the container."""
    engine = image_engine(os.environ)
    if not engine or not isinstance(error, RequestError):
        return error
    fix = fix_in_container(error.fix, error.mount, engine, os.environ)
    return RequestError(**error.parts | {"fix": fix, "mount": ""})


def _image(environ: Mapping[str, str]) -> str:
    return os.path.basename(environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or "IMAGE.sif")

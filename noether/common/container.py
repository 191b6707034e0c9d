"""Detect the container this process runs in, and write the command that restarts it with a missing mount or option."""

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from noether.common.errors import NoetherError, RequestError
from noether.common.process_defaults import IMAGE_RECORD

NEVER_MOUNTED = ("", "bin", "boot", "dev", "etc", "lib", "lib64", "proc", "sbin", "sys", "usr", "work")
"""First parts of paths that no fix offers to mount: the host's root ("") and system folders, and the image's own
folder, to which a folder of the user is already mounted."""


def container_engine(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """Return "apptainer", "podman" or "docker", or "" outside of a container."""
    if environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or (root / ".singularity.d").exists():
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    return "docker" if (root / ".dockerenv").exists() else ""


def image_engine(environ: Mapping[str, str]) -> str:
    """Return the engine if this is a container of the project's image, else "". Commands differ only there."""
    return container_engine(environ) if IMAGE_RECORD.exists() else ""


def container_line(engine: str, environ: Mapping[str, str], option: str) -> str:
    """Return the line that starts this container with one more option (docker run --gpus all …); "" outside."""
    if not engine:
        return ""
    if engine != "apptainer":
        return f"{engine} run {option} …"
    srun = "srun " if environ.get("SLURM_JOB_ID") else ""
    return f"{srun}apptainer exec {option} {_image(environ)} train …"


def program_line(engine: str, words: Sequence[str]) -> str:
    """Return the line that runs a program of the image other than its entrypoint: `bash -c …`."""
    if engine == "apptainer":
        return f"apptainer exec IMAGE.sif {shlex.join(words)}"
    return f"{engine} run --entrypoint {words[0]} … IMAGE {shlex.join(words[1:])}".rstrip()


def fix_in_container(fix: str, mount: str, engine: str, environ: Mapping[str, str]) -> str:
    """Return a fix as typed outside this container, preceded by the mount that it needs, if any.

    `mount` is a path that the container may lack or its user may not write to; `engine` is from `container_engine`.
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
        volume, what = (f"-v {mount}:{mount} ", ", with the folder") if offered else ("", "")
        given = f'{engine} run --user "$(id -u):$(id -g)" {volume}…      (as its owner{what})'
    return f"{given}\n{fix}" if fix else given


def fix_for_container(error: NoetherError) -> NoetherError:
    """In a container of the project's image, rewrite the fix to be typed outside it; elsewhere, return it unchanged."""
    engine = image_engine(os.environ)
    if not engine or not isinstance(error, RequestError):
        return error
    fix = fix_in_container(error.fix, error.mount, engine, os.environ)
    return RequestError(**error.parts | {"fix": fix, "mount": ""})


def _image(environ: Mapping[str, str]) -> str:
    return os.path.basename(environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or "IMAGE.sif")

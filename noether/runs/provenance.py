"""Record what a run's results depend on: image, lock file, revision, versions, driver, host. No torch here."""

import contextlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable
from functools import cache
from hashlib import sha256
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from noether import __version__
from noether.common.cpus import usable_cpus
from noether.common.process_defaults import IMAGE_RECORD

RECORDED_PACKAGES = ("torch", "numpy", "scipy", "fire", "hydra-core", "pydantic", "safetensors")
LEARNING = re.compile(r"noether\.(core|physics|training|checkpoints|launch\.process_group|launch\.batches)\b")
"""Noether's modules that affect what is learned: samples, models, losses, the loop, saved state, and how ranks share
a batch and add up results. Other modules only start, show or watch runs. Settings and data are compared separately."""
APPTAINER_LABELS = Path("/.singularity.d/labels.json")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def describe_environment() -> dict[str, Any]:
    """Return the content of environment.json: `provenance`, and where and how this run was started."""
    return {
        **provenance(),
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpus": usable_cpus(),
        "command": sys.argv,
        "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


@cache
def provenance() -> dict[str, Any]:
    """Return the facts that a checkpoint records about the program that wrote it.

    A fact that is not available is None, such as the driver's version on a machine without a driver.
    """
    source = Path(__file__).resolve().parents[2]
    lock = source / "constraints.txt"
    image = image_record()
    return {
        "noether": __version__,
        "python": platform.python_version(),
        "packages": {name: _version(name) or "not installed" for name in RECORDED_PACKAGES},
        "git_revision": image["git_revision"] if image else _git_revision(source),
        "lock_sha256": sha256(lock.read_bytes()).hexdigest() if lock.is_file() else None,
        "image": image,
        "driver": driver_version(),
        "nccl": nccl_version(requires("torch") or ()),
    }


def source_digests(own: Iterable[str]) -> dict[str, str]:
    """Return a source digest of each imported module that may affect what is learned, by module name.

    These are noether's modules that match `LEARNING`, the packages that the dotted paths `own` name, and all packages
    in the same folders, but no installed packages. Sources in folders, wheels and archives can be read.
    """
    loaded = {name: getattr(module, "__dict__", {}).get("__spec__") for name, module in list(sys.modules.items())}
    specs = {name: spec for name, spec in loaded.items() if isinstance(spec, ModuleSpec)}

    def place(root: str) -> Path | None:
        """Return the folder that holds a module or package; None if it is an installed one."""
        parts = specs[root].submodule_search_locations or [specs[root].origin or "nowhere"]
        folder = Path(next(iter(parts), "nowhere")).parent
        is_installed = folder.name in ("site-packages", "dist-packages") or folder == Path(sysconfig.get_path("stdlib"))
        return None if is_installed else folder

    roots = ({path.partition(".")[0] for path in own} & specs.keys()) - {"noether", *RECORDED_PACKAGES}
    beside, digests = {place(root) for root in roots} - {None}, {}
    for name, spec in sorted(specs.items()):
        root, read = name.partition(".")[0], getattr(spec.loader, "get_data", None)
        is_users = root in roots or (bool(beside) and root != "noether" and root in specs and place(root) in beside)
        if read and spec.origin and (is_users or LEARNING.match(name)):  # Built-ins and namespaces have no origin.
            with contextlib.suppress(OSError):
                content = read(spec.origin)
                # The 16-byte header of a .pyc holds its source's modification time.
                digests[name] = sha256(content[16:] if spec.origin.endswith(".pyc") else content).hexdigest()[:16]
    return digests


def image_record(
    record: Path = IMAGE_RECORD,
    labels: Path = APPTAINER_LABELS,
    sif: str | None = os.environ.get("APPTAINER_CONTAINER"),
) -> dict[str, Any] | None:
    """Return the image's record of itself, or None outside an image.

    The build records flavour, revision and lock file. A docker image cannot contain its own digest, so the digest
    comes from a SIF that was made from the image, or from NOETHER_IMAGE_DIGEST.
    """
    try:
        found: dict[str, Any] = json.loads(record.read_text())
    except (OSError, ValueError):
        return None
    digest = os.environ.get("NOETHER_IMAGE_DIGEST")
    if digest is None:
        with contextlib.suppress(OSError, ValueError):
            label = json.loads(labels.read_text()).get("noether.image")
            digest = None if label == "unknown" else label  # apptainer.def's default.
    return {**found, "digest": digest, "sif": sif}


def driver_version(path: Path = DRIVER_VERSION) -> str | None:
    """Return the NVIDIA driver's version without loading its library; None if there is no driver."""
    with contextlib.suppress(OSError):
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", path.read_text())
        return found[1] if found else None
    return None


def nccl_version(needs: Iterable[str]) -> str | None:
    """Return the version of the NCCL wheel among a package's requirements; None if it is not installed."""
    # The wheel's name contains the major version of CUDA.
    wheels = (re.match(r"nvidia-nccl-cu\d+", need) for need in needs)
    return next((_version(wheel[0]) for wheel in wheels if wheel), None)


def _version(package: str) -> str | None:
    with contextlib.suppress(PackageNotFoundError):
        return version(package)
    return None


def _git_revision(source: Path) -> str | None:
    command = ["git", "-C", str(source), "describe", "--always", "--dirty", "--abbrev=12"]
    if (source / ".git").exists():
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip() or None
    return None

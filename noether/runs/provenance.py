"""Records what a run's numbers depend on: image, lock, revision, versions, driver, host. No torch here."""

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
"""Of our own code, what learns: samples, models and losses, the loop, the state that goes on, and how ranks share a
batch and add. The rest starts, shows and watches a run; settings and data are compared by themselves."""
APPTAINER_LABELS = Path("/.singularity.d/labels.json")
DRIVER_VERSION = Path("/proc/driver/nvidia/version")


def describe_environment() -> dict[str, Any]:
    """Return what environment.json holds: `provenance`, and where and how this run was started."""
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
    """Return what a checkpoint must be able to say of the program that wrote it.

    What is not to be had is None: no image, no driver, no revision.
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
    """Return a digest of the source of each module that learns and is imported here, by the module's name.

    Those are ours of `LEARNING`, and of the user's, which dotted paths (`own`) name, all that lie in the same folder;
    of an installed package its own. Each is read from where it was imported: a folder, a wheel or an archive.
    """
    loaded = {name: getattr(module, "__dict__", {}).get("__spec__") for name, module in list(sys.modules.items())}
    specs = {name: spec for name, spec in loaded.items() if isinstance(spec, ModuleSpec)}

    def place(root: str) -> Path | None:
        """The folder in which a module or a package lies; None: among installed ones."""
        parts = specs[root].submodule_search_locations or [specs[root].origin or "nowhere"]
        folder = Path(next(iter(parts), "nowhere")).parent
        is_installed = folder.name in ("site-packages", "dist-packages") or folder == Path(sysconfig.get_path("stdlib"))
        return None if is_installed else folder

    roots = ({path.partition(".")[0] for path in own} & specs.keys()) - {"noether", *RECORDED_PACKAGES}
    beside, digests = {place(root) for root in roots} - {None}, {}
    for name, spec in sorted(specs.items()):
        root, read = name.partition(".")[0], getattr(spec.loader, "get_data", None)
        is_users = root in roots or (bool(beside) and root != "noether" and root in specs and place(root) in beside)
        if read and spec.origin and (is_users or LEARNING.match(name)):  # A built-in and a namespace have neither.
            with contextlib.suppress(OSError):
                content = read(spec.origin)
                # Bytecode that has no source beside it begins with when that was written.
                digests[name] = sha256(content[16:] if spec.origin.endswith(".pyc") else content).hexdigest()[:16]
    return digests


def image_record(
    record: Path = IMAGE_RECORD,
    labels: Path = APPTAINER_LABELS,
    sif: str | None = os.environ.get("APPTAINER_CONTAINER"),
) -> dict[str, Any] | None:
    """Return what the image says of itself, or None outside of one.

    The build leaves the flavour, the revision and the lock. A docker image's digest is not known before it is made,
    so it is there where the SIF was made from the image, or where NOETHER_IMAGE_DIGEST says it.
    """
    try:
        found: dict[str, Any] = json.loads(record.read_text())
    except (OSError, ValueError):
        return None
    digest = os.environ.get("NOETHER_IMAGE_DIGEST")
    if digest is None:
        with contextlib.suppress(OSError, ValueError):
            label = json.loads(labels.read_text()).get("noether.image")
            digest = None if label == "unknown" else label  # apptainer.def's own, where nobody said it.
    return {**found, "digest": digest, "sif": sif}


def driver_version(path: Path = DRIVER_VERSION) -> str | None:
    """Return the NVIDIA driver's version, without loading a library of its, or None without a driver."""
    with contextlib.suppress(OSError):
        found = re.search(r"\b(\d+\.\d+(?:\.\d+)?)\b", path.read_text())
        return found[1] if found else None
    return None


def nccl_version(needs: Iterable[str]) -> str | None:
    """Return the version of the NCCL wheel that is among a package's requirements; None where none is installed."""
    # The wheel's name carries the major version of CUDA.
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

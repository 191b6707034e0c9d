"""Gathers facts about a host without torch. A child process does this, because a probe can hang."""

import contextlib
import multiprocessing
import os
import platform
import pwd
import re
import resource
import site
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pynvml

from noether import __version__
from noether.common.container import container_engine
from noether.common.cpus import UsableCpus, read_cpus
from noether.common.processes import boot_id
from noether.config.schema import RunConfig
from noether.doctor.gpu_checks import Fabric, GpuHealth, can_load, probe_fabric, read_health, read_xids
from noether.doctor.report import Diagnosis
from noether.launch.detect.driver import Driver, ask_driver, ask_nvml
from noether.launch.detect.limits import shared_memory_size
from noether.launch.processes.death_signal import die_with_parent

PROBE_SECONDS, START_SECONDS = 6.0, 4.0
"""The time limits (s) of a probe, and of starting the process for all probes. A slower file system counts as hung."""
PACKAGES = ("torch", "numpy", "scipy", "fire", "pydantic", "hydra", "omegaconf", "yaml", "safetensors", "rich")


NETWORK_TYPES = {
    "9p", "afs", "beegfs", "ceph", "cifs", "cvmfs2", "gcsfuse", "glusterfs", "gpfs", "juicefs", "lustre",
    "ncpfs", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "s3fs", "smb3", "smbfs", "sshfs", "virtiofs",
    "wekafs",
}  # fmt: skip
"""The types of network file systems, as mount(8) names them; types in user space also have the prefix "fuse."."""

_LINE = re.compile(r"(?:[^ ]* ){4}([^ ]*).*? - ([^ ]*) ([^ ]*)")


@dataclass(frozen=True)
class Folder:
    """A folder that a run writes to. `fixed_by` is the variable or setting with which a user can move it elsewhere.

    `kind`, `source` and `free`: the type, the mounted source and the free bytes of its file system. `refusal`: why the
    folder cannot be written to. If `answered` is False, the file system did not answer, and these four are unknown.
    """

    purpose: str
    path: str
    fixed_by: str
    answered: bool = False
    kind: str = ""
    source: str = ""
    free: int = 0
    refusal: str = ""

    @property
    def on_network(self) -> bool:
        """True if the folder is on another machine, so that locks are slow and any call can hang."""
        return self.kind.removeprefix("fuse.") in NETWORK_TYPES


@dataclass(frozen=True)
class Infiniband:
    """InfiniBand on this host: `ports` holds (device, state) of each port, `nodes` the names in /dev/infiniband."""

    ports: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()
    has_verbs: bool = False

    @property
    def is_active(self) -> bool:
        """True if a port is connected."""
        return any(state == "ACTIVE" for _, state in self.ports)


@dataclass(frozen=True)
class User:
    """The user of this process. `name`: the name in the passwd entry, "" without an entry."""

    uid: int
    name: str
    home: str
    home_exists: bool


@dataclass(frozen=True)
class HostFacts:
    """The facts about one host. A fact is None if its probe did not answer."""

    host: str = ""
    boot: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    container: str = ""
    folders: tuple[Folder, ...] = ()
    shared_memory: int | None = None
    memlock: int | None = None
    infiniband: Infiniband | None = None
    driver: Driver | None = None
    gpu_health: tuple[GpuHealth, ...] | None = None
    xids: tuple[tuple[str, int], ...] | None = None
    fabric: Fabric | None = None
    user: User | None = None
    cpus: UsableCpus | None = None
    shadows: tuple[tuple[str, str], ...] | None = None


def read_host(config: RunConfig, driver_seconds: float) -> tuple[HostFacts, list[Diagnosis]]:
    """Let a child process read the facts of this host; return them, and a finding if they cannot be read.

    The NVIDIA driver must answer within `distributed.driver_timeout_s` and within `driver_seconds`.
    """
    spawning = multiprocessing.get_context("spawn")
    reader, writer = spawning.Pipe(duplex=False)
    driver_seconds = min(driver_seconds, config.distributed.driver_timeout_s)
    asked = (writer, wanted_folders(config.output_path, os.environ), driver_seconds)
    child = spawning.Process(target=_send_facts, args=asked, daemon=True)
    child.start()
    writer.close()
    try:
        if reader.poll(max(PROBE_SECONDS, driver_seconds) + START_SECONDS):
            return reader.recv(), []
        why = "no answer in time"
    except EOFError:
        child.join(1.0)
        why = f"the process that reads them ended with exit code {child.exitcode}"
    finally:
        child.kill()
    seen = f"the facts of this host cannot be read: {why}"
    return HostFacts(host=socket.gethostname()), [Diagnosis("host", "error", seen, "an answer in time")]


def _send_facts(writer: Connection, folders: Sequence[tuple[str, str, str]], driver_seconds: float) -> None:
    die_with_parent()
    writer.send(gather_facts(folders, driver_seconds))
    os._exit(0)  # A normal exit would wait for a probe that hangs.


def wanted_folders(output_path: Path, environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (purpose, path, the variable or setting that chooses another path) for each folder that a run writes to.

    The default paths of caches are from the documentation of torch, triton, CUDA and matplotlib.
    """
    home, scratch = environ.get("HOME", "/"), environ.get("TMPDIR", "/tmp")
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    user = environ.get("USER", "") or str(os.getuid())
    caches = [
        ("data cache", "XDG_CACHE_HOME", cache),
        ("triton cache", "TRITON_CACHE_DIR", f"{home}/.triton/cache"),
        ("inductor cache", "TORCHINDUCTOR_CACHE_DIR", f"{scratch}/torchinductor_{user}"),
        ("CUDA cache", "CUDA_CACHE_PATH", f"{home}/.nv/ComputeCache"),
        ("matplotlib cache", "MPLCONFIGDIR", f"{cache}/matplotlib"),
    ]
    output = ("output", str(output_path.expanduser().absolute()), "output_path")
    return [output, *((purpose, environ.get(name) or default, name) for purpose, name, default in caches)]


def gather_facts(folders: Sequence[tuple[str, str, str]], driver_seconds: float = PROBE_SECONDS) -> HostFacts:
    """Return the facts whose probes end within PROBE_SECONDS, or for the NVIDIA driver within `driver_seconds` + 1."""
    probes: dict[str, Callable[[], Any]] = {
        "boot": boot_id, "shared_memory": shared_memory_size,
        "memlock": lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0], "infiniband": _infiniband,
        "driver": lambda: ask_driver(driver_seconds), "gpu_health": lambda: _gpu_health(driver_seconds),
        "xids": read_xids, "fabric": lambda: probe_fabric(os.environ), "user": _user, "cpus": read_cpus,
        "shadows": _shadows,
    }  # fmt: skip
    answers: dict[Any, Any] = {}

    def probe(name: Any, ask: Callable[[], Any]) -> None:
        with contextlib.suppress(OSError, ValueError):
            answers[name] = ask()

    asked = [*probes.items(), *((folder, partial(probe_folder, *folder)) for folder in folders)]
    threads = [threading.Thread(target=probe, args=entry, daemon=True) for entry in asked]
    for thread in threads:
        thread.start()
    started = time.monotonic()
    for thread, (name, _) in zip(threads, asked, strict=True):
        seconds = driver_seconds + 1 if name in ("driver", "gpu_health") else PROBE_SECONDS
        thread.join(max(0.0, started + seconds - time.monotonic()))
    versions = {"noether": __version__, "python": platform.python_version()}
    with contextlib.suppress(PackageNotFoundError):
        versions["torch"] = version("torch")
    return HostFacts(
        host=socket.gethostname(),
        versions=versions,
        container=container_engine(os.environ),
        folders=tuple(answers.get(folder) or Folder(*folder) for folder in folders),
        **{name: answers[name] for name in probes if name in answers},
    )


def probe_folder(purpose: str, path: str, fixed_by: str) -> Folder:
    """Examine the file system of a folder, which need not exist. If the file system hangs, this call hangs."""
    mounts = Path("/proc/self/mountinfo").read_text(errors="replace") if sys.platform == "linux" else ""
    resolved = Path(os.path.realpath(path))
    kind, source = mount_of(resolved, mounts)
    nearest = next(each for each in (resolved, *resolved.parents) if each.exists())
    free, refusal = 0, ""
    try:
        numbers = os.statvfs(nearest)
        free = numbers.f_bavail * numbers.f_frsize
        # Write a file, because permissions do not show whether the mount is read-only or the disk is full.
        with tempfile.TemporaryFile(dir=nearest) as probe:
            probe.write(b"0" * 4096)
    except OSError as error:
        refusal = f"{error.strerror or error} ({nearest})"
    return Folder(purpose, path, fixed_by, answered=True, kind=kind, source=source, free=free, refusal=refusal)


def mount_of(path: Path, mounts: str) -> tuple[str, str]:
    """Return the type and source of the file system of an absolute path. `mounts`: the text of /proc/self/mountinfo.

    Of the mount points above the path, the longest one counts; if several are equal, the last one. In the text, the
    optional fields end at a single dash, and spaces are written \\040 (proc(5)).
    """
    found, depth = ("", ""), 0
    for line in filter(None, map(_LINE.match, mounts.splitlines())):
        point, kind, source = (re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), one) for one in line.groups())
        if path.is_relative_to(point) and len(Path(point).parts) >= depth:
            found, depth = (kind, source), len(Path(point).parts)
    return found


def _gpu_health(seconds: float) -> tuple[GpuHealth, ...]:
    try:
        return tuple(ask_nvml(read_health, seconds))
    except pynvml.NVMLError:
        return ()  # `check_driver` reports the error.


def _infiniband() -> Infiniband:
    # A state reads "4: ACTIVE" (Documentation/ABI/stable/sysfs-class-infiniband).
    states = sorted(Path("/sys/class/infiniband").glob("*/ports/*/state"))
    ports = tuple((state.parts[-4], state.read_text().strip().rpartition(": ")[2]) for state in states)
    nodes = tuple(sorted(node.name for node in Path("/dev/infiniband").glob("*")))
    return Infiniband(ports, nodes, can_load("libibverbs.so.1"))


def _user() -> User:
    name = home = ""
    with contextlib.suppress(KeyError):
        name, home = pwd.getpwuid(os.getuid()).pw_name, pwd.getpwuid(os.getuid()).pw_dir
    home = os.environ.get("HOME") or home
    return User(os.getuid(), name, home, bool(home) and Path(home).is_dir())


def _shadows() -> tuple[tuple[str, str], ...]:
    """Return (name, folder) of each module in PYTHONPATH or ~/.local that hides an installed or a standard module."""
    folders = [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder in sys.path]
    if site.ENABLE_USER_SITE and site.getusersitepackages() in sys.path:
        folders.append(site.getusersitepackages())
    own = {path for path in sys.path if path.startswith(sys.prefix)}
    hidden = {*PACKAGES, *(name for name in sys.stdlib_module_names if not name.startswith("_"))}
    return tuple(
        (name, folder)
        for folder in folders
        if not own & {folder, os.path.realpath(folder)}
        for name in sorted({entry.partition(".")[0] for entry in os.listdir(folder)} & hidden)
        if any((Path(folder) / each).exists() for each in (f"{name}.py", f"{name}/__init__.py"))
    )

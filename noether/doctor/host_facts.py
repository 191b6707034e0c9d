"""Gathers the facts of a host, without torch, in a child process that may hang.

As a program it takes a JSON object of folders on the command line and prints the facts as one JSON object.
"""

import contextlib
import json
import os
import platform
import pwd
import resource
import site
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from noether import __version__
from noether.common.container import container_engine
from noether.common.cpus import UsableCpus, read_cpus
from noether.common.processes import boot_id
from noether.doctor.gpu_health import Fabric, GpuHealth, can_load, probe_fabric, probe_gpus, read_kernel_log, xids
from noether.doctor.mounts import mount_of, read_mounts
from noether.launch.detect.driver import Driver, ask_driver
from noether.launch.planning.shared_memory import shared_memory_size

PROBE_SECONDS = 6.0
"""How long one probe may take. A file system or driver that needs longer is treated as hung."""
PACKAGES = ("torch", "numpy", "scipy", "fire", "pydantic", "hydra", "omegaconf", "yaml", "safetensors", "rich")


@dataclass(frozen=True)
class Folder:
    """A folder that a run writes to. `fixed_by` is the variable or setting that chooses another folder.

    `kind` and `source` describe its file system; `free` is in bytes; `refusal` is why the folder cannot be written, ""
    if it can. If the file system did not answer in time, `answered` is false and the rest is unknown.
    """

    purpose: str
    path: str
    fixed_by: str
    answered: bool = False
    kind: str = ""
    source: str = ""
    on_network: bool = False
    free: int = 0
    refusal: str = ""


@dataclass(frozen=True)
class Infiniband:
    """InfiniBand on this host: `ports` are (device, state), `nodes` the files under /dev/infiniband."""

    ports: tuple[tuple[str, str], ...] = ()
    nodes: tuple[str, ...] = ()
    has_verbs: bool = False


@dataclass(frozen=True)
class User:
    """The user of this process: `name` is "" without a passwd entry."""

    uid: int
    name: str
    home: str
    home_exists: bool


@dataclass(frozen=True)
class HostFacts:
    """What was found on one host. Probes that did not answer are None and listed in `unanswered`."""

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
    shadows: tuple[tuple[str, str], ...] = ()
    unanswered: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> "HostFacts":
        """Reads the facts as JSON gives them back: dicts for dataclasses, lists for tuples; None is not known."""
        from pydantic import TypeAdapter  # The child process, which may read from a slow disk, does without it.

        return TypeAdapter(cls).validate_python({name: value for name, value in found.items() if value is not None})


def wanted_folders(output_path: Path, environ: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns (purpose, path, the setting that chooses another path) for each folder that a run writes to.

    The defaults of the caches are from the documentation of torch, triton, CUDA and matplotlib.
    """
    home = environ.get("HOME", "/")
    cache = environ.get("XDG_CACHE_HOME") or f"{home}/.cache"
    user = environ.get("USER", "") or str(os.getuid())
    scratch = environ.get("TMPDIR", "/tmp")
    inductor = environ.get("TORCHINDUCTOR_CACHE_DIR") or f"{scratch}/torchinductor_{user}"
    return [
        ("output", str(output_path.expanduser().absolute()), "output_path"),
        ("data cache", cache, "XDG_CACHE_HOME"),
        ("triton cache", environ.get("TRITON_CACHE_DIR") or f"{home}/.triton/cache", "TRITON_CACHE_DIR"),
        ("inductor cache", inductor, "TORCHINDUCTOR_CACHE_DIR"),
        ("CUDA cache", environ.get("CUDA_CACHE_PATH") or f"{home}/.nv/ComputeCache", "CUDA_CACHE_PATH"),
        ("matplotlib cache", environ.get("MPLCONFIGDIR") or f"{cache}/matplotlib", "MPLCONFIGDIR"),
    ]


def gather_facts(folders: Sequence[tuple[str, str, str]], seconds: float = PROBE_SECONDS) -> HostFacts:
    """Returns the facts without those that take longer than `seconds`."""
    most_of_it = 0.8 * seconds
    probes: dict[str, Callable[[], Any]] = {
        "boot": boot_id,
        "shared_memory": shared_memory_size,
        "memlock": lambda: resource.getrlimit(resource.RLIMIT_MEMLOCK)[0],
        "infiniband": _infiniband,
        "driver": lambda: ask_driver(most_of_it),
        "gpu_health": lambda: tuple(probe_gpus(most_of_it)),
        "xids": lambda: tuple(xids(read_kernel_log())),
        "fabric": lambda: probe_fabric(os.environ),
        "user": lambda: _user(os.environ),
        "cpus": read_cpus,
        "shadows": lambda: tuple(_shadows(os.environ)),
    }
    answers: dict[Any, Any] = {}
    finished: set[Any] = set()

    def probe(name: Any, ask: Callable[[], Any]) -> None:
        with contextlib.suppress(OSError, ValueError):
            answers[name] = ask()
        finished.add(name)

    asked = [*probes.items(), *((folder, partial(probe_folder, *folder)) for folder in folders)]
    threads = [threading.Thread(target=probe, args=entry, daemon=True) for entry in asked]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return HostFacts(
        host=socket.gethostname(),
        versions=_versions(),
        container=container_engine(os.environ),
        folders=tuple(answers.get(folder) or Folder(*folder) for folder in folders),
        unanswered=tuple(name for name in probes if name not in finished),
        **{name: answers[name] for name in probes if name in answers},
    )


def probe_folder(purpose: str, path: str, fixed_by: str) -> Folder:
    """Examines the file system that a folder is on or would be created on. Hangs if that file system hangs."""
    text = Path("/proc/self/mountinfo").read_text(errors="replace") if sys.platform == "linux" else ""
    resolved = os.path.realpath(path)
    mount = mount_of(resolved, read_mounts(text))
    nearest = next(str(each) for each in (Path(resolved), *Path(resolved).parents) if each.exists())
    free, refusal = 0, ""
    try:
        numbers = os.statvfs(nearest)
        free = numbers.f_bavail * numbers.f_frsize
        # Permissions are not enough: a read-only mount or a full disk shows only in a write.
        with tempfile.TemporaryFile(dir=nearest) as probe:
            probe.write(b"0" * 4096)
    except OSError as error:
        refusal = f"{error.strerror or error} ({nearest})"
    folder = Folder(purpose, path, fixed_by, answered=True, free=free, refusal=refusal)
    return replace(folder, kind=mount.kind, source=mount.source, on_network=mount.on_network) if mount else folder


def _infiniband() -> Infiniband:
    # "4: ACTIVE" (Documentation/ABI/stable/sysfs-class-infiniband).
    states = sorted(Path("/sys/class/infiniband").glob("*/ports/*/state"))
    ports = tuple((state.parts[-4], state.read_text().strip().rpartition(": ")[2]) for state in states)
    nodes = tuple(sorted(node.name for node in Path("/dev/infiniband").glob("*")))
    return Infiniband(ports, nodes, can_load("libibverbs.so.1"))


def _user(environ: Mapping[str, str]) -> User:
    try:
        entry = pwd.getpwuid(os.getuid())
        name, home = entry.pw_name, entry.pw_dir
    except KeyError:
        name, home = "", ""
    home = environ.get("HOME") or home
    return User(os.getuid(), name, home, bool(home) and Path(home).is_dir())


def _shadows(environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Returns (name, folder) of each module in PYTHONPATH or ~/.local that hides an installed or standard one."""
    folders = [folder for folder in environ.get("PYTHONPATH", "").split(os.pathsep) if folder in sys.path]
    if site.ENABLE_USER_SITE and site.getusersitepackages() in sys.path:
        folders.append(site.getusersitepackages())
    own = {path for path in sys.path if path.startswith(sys.prefix)}
    standard = {name for name in sys.stdlib_module_names if not name.startswith("_")}
    found = []
    for folder in folders:
        if folder in own or os.path.realpath(folder) in own:
            continue
        for name in sorted({entry.partition(".")[0] for entry in os.listdir(folder)} & {*standard, *PACKAGES}):
            if any((Path(folder) / each).exists() for each in (f"{name}.py", f"{name}/__init__.py")):
                found.append((name, folder))
    return found


def _versions() -> dict[str, str]:
    found = {"noether": __version__, "python": platform.python_version()}
    with contextlib.suppress(PackageNotFoundError):
        found["torch"] = version("torch")
    return found


if __name__ == "__main__":
    from noether.launch.processes.death_signal import die_with_parent

    die_with_parent()
    asked = json.loads(sys.argv[1])
    gathered = gather_facts([tuple(folder) for folder in asked["folders"]], asked["seconds"])
    print(json.dumps(asdict(gathered)), flush=True)
    os._exit(0)  # A probe may still be hanging in a thread.

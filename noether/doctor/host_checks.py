"""The checks of one host, from torch and the devices to the folders, as pure functions."""

import re
from collections.abc import Mapping
from typing import Any

from noether.common.cpus import share_cpus
from noether.common.errors import RequestError
from noether.common.numbers import counted, size_text
from noether.doctor.gpu_checks import check_fabric, check_gpu_health
from noether.doctor.host_facts import Folder, HostFacts
from noether.doctor.report import Diagnosis, Level, first_of_problems, refused, skipped
from noether.launch.detect.devices import find_devices
from noether.launch.detect.driver import Driver
from noether.launch.detect.placement import LaunchRequest, Placement

OLDEST_DRIVER = {13: (580, 65), 12: (525, 60), 11: (450, 80)}
"""{major version of CUDA: the oldest Linux driver that runs all minor releases of that version}, from the table "minor
version compatibility" of the CUDA release notes: 580.65.06, 525.60.13, 450.80.02."""
MIB, GIB = 1 << 20, 1 << 30
SMALL_SHARED_MEMORY = 64 * MIB
"""The size of /dev/shm that Docker sets by default (docker run --shm-size), in bytes."""
ENOUGH = GIB
"""The size in bytes that is sufficient for shared memory, for locked memory, and for the free space of a folder."""
NO_DISK = 100 * MIB
UNLIMITED = (-1, (1 << 63) - 1, (1 << 64) - 1)


def check_host(
    facts: HostFacts,
    place: Placement,
    torch: Mapping[str, Any],
    devices: Mapping[str, Any],
    environ: Mapping[str, str],
    load: float,
) -> list[Diagnosis]:
    """Return the findings of all checks of a host.

    `torch` and `devices`: a rank's results of the steps of the same names, or its "error". `load`: the average count of
    processes on the host that compute or wait for a disk.
    """
    on_gpus = any(worker.device.kind == "cuda" for worker in place.workers)
    return [
        check_versions(facts, torch),
        check_torch(torch, load, facts.cpus.count if facts.cpus is not None else 1),
        check_driver(facts, torch),
        check_devices(facts, torch, devices, environ),
        *check_gpu_health(facts),
        check_imports(facts),
        Diagnosis("container", "ok", facts.container or "none"),
        check_shared_memory(facts, place.local_world_size if on_gpus else 0),
        check_infiniband(facts),
        check_fabric(facts, environ),
        check_locked_memory(facts),
        check_cores(facts, environ, len(place.workers), place.local_world_size),
        check_user(facts, environ),
        *(check_folder(folder) for folder in facts.folders),
    ]


def check_versions(facts: HostFacts, torch: Mapping[str, Any]) -> Diagnosis:
    """List the installed versions; report an error if torch is not installed."""
    words = [f"{name} {number}" for name, number in facts.versions.items()]
    words += [f"{name} {torch[key]}" for name, key in (("CUDA", "cuda"), ("NCCL", "nccl")) if torch.get(key)]
    seen, fix = ", ".join(words), "pip install --constraint constraints.txt torch"
    return first_of_problems(
        "versions", seen, ("torch" not in facts.versions, "error", seen, "an installed torch", fix)
    )


def check_torch(torch: Mapping[str, Any], load: float = 0.0, cores: int = 1) -> Diagnosis:
    """Check that `import torch` works in time. `load`: the count of this host's processes that compute or wait."""
    # On a busy machine, importing torch can take minutes. On an idle machine, a late import means that a disk hangs.
    is_busy = load > cores
    seen = f"import torch: {torch.get('error')}"
    late = seen + (f"; the load is {load:.1f} on {cores} cores" if is_busy else "")
    in_time = "an import in time (the first one from a network disk may take minutes)"
    again = "pip install --force-reinstall --constraint constraints.txt torch"
    return first_of_problems(
        "torch",
        f"torch {torch.get('version')} imports",
        (torch.get("late"), "warning" if is_busy else "error", late, in_time, "noether doctor --timeout 300"),
        ("error" in torch, "error", seen, "an installed torch that can be imported", again),
        (not torch.get("gloo"), "error", "torch without gloo", "a torch with distributed support", "pip install torch"),
    )


def check_driver(facts: HostFacts, torch: Mapping[str, Any]) -> Diagnosis:
    """Check that the NVIDIA driver is new enough for the version of CUDA that torch was built for."""
    driver, cuda = facts.driver or Driver(trouble="hangs", error="no answer in time"), str(torch.get("cuda", ""))
    if refusal := driver.refusal():
        return refused("driver", refusal)
    if driver.gpus is None:
        passed = "docker run --gpus all …, apptainer exec --nv …      (accelerator=cpu if there is no GPU)"
        listing = "nvidia-smi      (in a container: docker run --gpus all, apptainer exec --nv)"
        there = f"/dev/{''.join(driver.nodes[:1])} exists, but NVML says: {driver.error or 'nothing'}"
        none = f"no NVIDIA driver ({driver.error}); torch is built for CUDA {cuda}"
        return first_of_problems(
            "driver", "no NVIDIA GPU here", (driver.nodes, "error", there, "a driver that lists its GPUs", listing),
            (cuda, "warning", none, "a driver, if this host has a GPU", passed),
        )  # fmt: skip
    seen = f"driver {driver.version}, {counted(len(driver.gpus), 'GPU')}"
    if "error" not in torch and torch:
        seen += f"; torch is built for CUDA {cuda}" if cuda else "; torch is built without CUDA"
    oldest = OLDEST_DRIVER.get(int(cuda.partition(".")[0] or 0), (0, 0))
    here = tuple(int(number) for number in re.findall(r"\d+", driver.version)[:2])
    fits = next((major for major, number in OLDEST_DRIVER.items() if here >= number), None)
    wanted = f"driver {oldest[0]}.{oldest[1]} or newer for CUDA {cuda}"
    fix = f"a torch built for CUDA {fits}.x, or a newer driver" if fits else "a newer driver"
    return first_of_problems("driver", seen, (here and here < oldest, "error", seen, wanted, fix))


def check_devices(
    facts: HostFacts, torch: Mapping[str, Any], devices: Mapping[str, Any], environ: Mapping[str, str]
) -> Diagnosis:
    """Check that the driver, CUDA_VISIBLE_DEVICES and torch agree about the devices."""
    if "error" in devices or not devices:
        why = devices.get("error", "torch could not be imported")
        level: Level = "error" if facts.driver is not None and facts.driver.gpus else "skipped"
        fix = "nvidia-smi      (if it hangs, the GPU needs a reset)" if level == "error" else ""
        return Diagnosis("devices", level, f"torch cannot list its devices: {why}", fix=fix)
    listed = len(facts.driver.gpus) if facts.driver and facts.driver.gpus is not None else 0
    mask = environ.get("CUDA_VISIBLE_DEVICES")
    masked = "CUDA_VISIBLE_DEVICES is not set" if mask is None else f"CUDA_VISIBLE_DEVICES={mask}"
    seen = f"the driver lists {listed}, {masked}, torch sees {devices['count']}"
    if not listed and not devices["count"]:
        return Diagnosis("devices", "ok", "the CPU only")
    if not torch["cuda"]:
        return skipped("devices", f"{seen}: it is built without CUDA")
    if devices["why"]:
        fix = "unset CUDA_VISIBLE_DEVICES" if mask is not None else "nvidia-smi"
        return Diagnosis("devices", "error", f"{seen}: {devices['why']}", "devices that torch can use", fix)
    divided = bool(facts.driver and facts.driver.gpus and any(gpu.mig_uuids for gpu in facts.driver.gpus))
    try:
        inventory = find_devices(LaunchRequest(), environ, (facts.driver or Driver()).listed)
    except RequestError as error:
        return refused("devices", error)
    allowed = len(inventory.devices) if inventory.kind == "cuda" else 0
    if devices["count"] != allowed and listed and not divided:
        fix = "unset CUDA_VISIBLE_DEVICES" if mask is not None else "nvidia-smi -q"
        return Diagnosis("devices", "error", seen, f"{allowed} devices in torch", fix)
    names = ", ".join(dict.fromkeys(devices["names"]))
    return Diagnosis("devices", "ok", f"{seen} ({names})" if names else seen)


def check_imports(facts: HostFacts) -> Diagnosis:
    """Find modules in PYTHONPATH or ~/.local that hide standard or installed ones."""
    if facts.shadows is None:
        return skipped("imports", "a folder of PYTHONPATH or ~/.local does not answer")
    names, folders = [name for name, _ in facts.shadows], list(dict.fromkeys(folder for _, folder in facts.shadows))
    seen = f"{', '.join(names[:6])}{' …' if len(names) > 6 else ''} from {', '.join(folders)}"
    fix = "export PYTHONNOUSERSITE=1" if all("/.local/" in folder for folder in folders) else "unset PYTHONPATH"
    works, wanted = "nothing in PYTHONPATH or ~/.local hides an installed module", "the installed modules of that name"
    return first_of_problems("imports", works, (names, "warning", seen, wanted, fix))


def check_shared_memory(facts: HostFacts, gpu_ranks: int) -> Diagnosis:
    """Check that NCCL has enough of /dev/shm to connect the GPUs of this host. (For loaders, the plan checks it.)"""
    size = facts.shared_memory
    if gpu_ranks < 2 or size is None:
        unread, unused = "/dev/shm cannot be read", "NCCL needs it only on a host with two or more GPUs"
        return skipped("shared memory", unused if gpu_ranks < 2 else unread)
    fix = "mount -o remount,size=8g /dev/shm      (in a container: --shm-size=8g or --ipc=host)"
    if facts.container in ("docker", "podman"):
        fix = f"{facts.container} run --shm-size=8g …      (or --ipc=host)"
    seen, expected = f"/dev/shm has {size_text(size)}", f"{size_text(ENOUGH)} or more: otherwise NCCL cannot start"
    level: Level = "error" if size <= SMALL_SHARED_MEMORY else "warning"
    return first_of_problems("shared memory", seen, (size < ENOUGH, level, seen, expected, fix))


def check_infiniband(facts: HostFacts) -> Diagnosis:
    """Check that NCCL can use an InfiniBand card. Otherwise, NCCL silently uses TCP."""
    found, tcp = facts.infiniband, "NCCL silently uses TCP instead"
    if found is None:
        return skipped("infiniband", "/sys/class/infiniband cannot be read")
    if not found.ports:
        return Diagnosis("infiniband", "ok", "none here")
    seen = "ports: " + ", ".join(f"{device} {state}" for device, state in found.ports)
    has_devices = any(name.startswith("uverbs") for name in found.nodes)
    cable = "ibstat      (check the cable and the switch)"
    container = "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 …"
    package = "apt-get install rdma-core libibverbs1 ibverbs-providers"
    return first_of_problems(
        "infiniband", seen, (not found.is_active, "warning", seen, f"an ACTIVE port; {tcp}", cable),
        (not has_devices, "warning", f"{seen}; no /dev/infiniband/uverbs*", f"the devices; {tcp}", container),
        (not found.has_verbs, "warning", f"{seen}; no libibverbs.so.1", f"the library; {tcp}", package),
    )  # fmt: skip


def check_locked_memory(facts: HostFacts) -> Diagnosis:
    """Check the limit of locked memory (RLIMIT_MEMLOCK), because InfiniBand locks the memory that it uses."""
    if facts.memlock is None:
        return skipped("locked memory", "RLIMIT_MEMLOCK cannot be read")
    is_little = facts.memlock not in UNLIMITED and facts.memlock < ENOUGH
    is_used = facts.infiniband is not None and facts.infiniband.is_active
    seen = "unlimited" if facts.memlock in UNLIMITED else f"{size_text(facts.memlock)} may be locked (ulimit -l)"
    wanted = "unlimited: InfiniBand cannot register memory otherwise"
    fix = "ulimit -l unlimited      (docker run --ulimit memlock=-1, LimitMEMLOCK=infinity for slurmd)"
    return first_of_problems("locked memory", seen, (is_little and is_used, "error", seen, wanted, fix))


def check_cores(facts: HostFacts, environ: Mapping[str, str], ranks: int, ranks_on_node: int) -> Diagnosis:
    """Check that a rank has no more threads than this process has cores. `ranks`: the count of this process's ranks."""
    if facts.cpus is None:
        return skipped("cores", "the CPU affinity cannot be read")
    try:
        share, text = share_cpus(facts.cpus, environ, ranks, ranks_on_node), environ.get("OMP_NUM_THREADS", "")
    except RequestError as error:
        return refused("cores", error)
    seen = f"{facts.cpus}; {counted(ranks_on_node, 'rank')} here, threads of each: {share.threads}"
    seen += f", OMP_NUM_THREADS={text}" if text else ""
    most = f"at most {facts.cpus.count} threads per process: more of them wait for each other"
    return first_of_problems(
        "cores", seen, (share.threads > facts.cpus.count, "warning", seen, most, "unset OMP_NUM_THREADS")
    )


def check_user(facts: HostFacts, environ: Mapping[str, str]) -> Diagnosis:
    """Check that the user has a name and a home folder, because libraries need both for their caches."""
    if facts.user is None:
        return skipped("user", "the passwd entry cannot be read (the directory service may be hanging)")
    user = facts.user
    name = user.name or environ.get("USER") or environ.get("LOGNAME")
    seen = f"uid {user.uid}, {user.name or 'no passwd entry'}, HOME={user.home or '(not set)'}"
    return first_of_problems(
        "user", seen, (not name, "warning", seen, "a passwd entry, or USER set", f"export USER=uid{user.uid}"),
        (not user.home_exists, "warning", seen, "a home folder that exists", "export HOME=/tmp"),
    )  # fmt: skip


def check_folder(folder: Folder) -> Diagnosis:
    """Check that a folder answers, is writable and has space, and that no compiler cache is on the network."""
    path, is_needed = folder.path, folder.purpose in ("output", "data cache")
    is_output, enough = folder.fixed_by == "output_path", f"{size_text(ENOUGH)} or more"
    fix = "output_path=FOLDER" if is_output else f"export {folder.fixed_by}=/tmp/cache-$(id -u)"
    level: Level = "error" if is_needed else "warning"
    seen = f"{path} on {folder.kind or 'an unknown file system'}, {size_text(folder.free)} free"
    shared, local = f"{seen} ({folder.source})", "a local folder: all ranks lock and rename files in it"
    return first_of_problems(
        folder.purpose,
        seen,
        (not folder.answered, "error", f"{path}: its file system does not answer", "a file system that answers", fix),
        (folder.refusal, level, f"{path}: {folder.refusal}", "a writable folder", fix),
        (folder.free < NO_DISK and is_needed, "error", seen, enough, fix),
        (folder.on_network and not is_needed, "warning", shared, local, fix),
        (folder.free < ENOUGH, "warning", seen, enough, fix),
    )

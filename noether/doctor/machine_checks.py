"""Checks of a host: shared memory, locked memory, InfiniBand, cores, user, folders. Pure functions of its facts."""

from collections.abc import Mapping

from noether.common.cpus import asked_threads, share_cpus
from noether.common.numbers import counted, size_text
from noether.doctor.diagnosis import Diagnosis, Level, skipped
from noether.doctor.host_facts import Folder, HostFacts

MIB = 1 << 20
GIB = 1 << 30
SMALL_SHARED_MEMORY = 64 * MIB
"""Docker's default (docker run --shm-size)."""
ENOUGH_SHARED_MEMORY = GIB
ENOUGH_LOCKED_MEMORY = GIB
UNLIMITED = (-1, (1 << 63) - 1, (1 << 64) - 1)
LITTLE_DISK = GIB
NO_DISK = 100 * MIB


def check_shared_memory(facts: HostFacts, gpu_ranks: int) -> Diagnosis:
    """Checks that /dev/shm is large enough for NCCL between the GPUs of this host; the plan checks it for loaders."""
    if gpu_ranks < 2:
        return skipped("shared memory", "NCCL uses it, between two or more GPUs of a host")
    if facts.shared_memory is None:
        return skipped("shared memory", "/dev/shm cannot be read")
    seen = f"/dev/shm has {size_text(facts.shared_memory)}"
    expected = f"{size_text(ENOUGH_SHARED_MEMORY)} or more: else NCCL cannot start"
    fix = "mount -o remount,size=8g /dev/shm      (in a container: --shm-size=8g or --ipc=host)"
    if facts.container in ("docker", "podman"):
        fix = f"{facts.container} run --shm-size=8g …      (or --ipc=host)"
    if facts.shared_memory >= ENOUGH_SHARED_MEMORY:
        return Diagnosis("shared memory", "ok", seen)
    small = facts.shared_memory <= SMALL_SHARED_MEMORY
    return Diagnosis("shared memory", "error" if small else "warning", seen, expected, fix)


def check_infiniband(facts: HostFacts) -> Diagnosis:
    """Checks that an InfiniBand card can be used: if not, NCCL silently falls back to TCP."""
    found = facts.infiniband
    if found is None:
        return skipped("infiniband", "/sys/class/infiniband cannot be read")
    if not found.ports:
        return Diagnosis("infiniband", "ok", "none here")
    active = [device for device, state in found.ports if state == "ACTIVE"]
    seen = "ports: " + ", ".join(f"{device} {state}" for device, state in found.ports)
    without = "NCCL silently uses TCP instead"
    if not active:
        fix = "ibstat      (check the cable and the switch)"
        return Diagnosis("infiniband", "warning", seen, f"an ACTIVE port; {without}", fix)
    if not any(name.startswith("uverbs") for name in found.nodes):
        fix = "docker run --device /dev/infiniband --cap-add IPC_LOCK --ulimit memlock=-1 …"
        return Diagnosis("infiniband", "warning", f"{seen}; no /dev/infiniband/uverbs*", f"the devices; {without}", fix)
    if not found.has_verbs:
        fix = "apt-get install rdma-core libibverbs1 ibverbs-providers"
        return Diagnosis("infiniband", "warning", f"{seen}; no libibverbs.so.1", f"the library; {without}", fix)
    return Diagnosis("infiniband", "ok", seen)


def check_locked_memory(facts: HostFacts) -> Diagnosis:
    """Checks RLIMIT_MEMLOCK: InfiniBand locks the memory that it sends from."""
    if facts.memlock is None:
        return skipped("locked memory", "RLIMIT_MEMLOCK cannot be read")
    seen = "unlimited" if facts.memlock in UNLIMITED else f"{size_text(facts.memlock)} may be locked (ulimit -l)"
    active = facts.infiniband is not None and any(state == "ACTIVE" for _, state in facts.infiniband.ports)
    if facts.memlock in UNLIMITED or facts.memlock >= ENOUGH_LOCKED_MEMORY or not active:
        return Diagnosis("locked memory", "ok", seen)
    fix = "ulimit -l unlimited      (docker run --ulimit memlock=-1, LimitMEMLOCK=infinity for slurmd)"
    return Diagnosis("locked memory", "error", seen, "unlimited: InfiniBand cannot register memory otherwise", fix)


def check_cores(facts: HostFacts, environ: Mapping[str, str], ranks: int, ranks_on_node: int) -> Diagnosis:
    """Compares the threads of a rank with the cores of this process, which has `ranks` of the node's ranks."""
    if facts.cpus is None:
        return skipped("cores", "the CPU affinity cannot be read")
    share, text = share_cpus(facts.cpus, environ, ranks, ranks_on_node), environ.get("OMP_NUM_THREADS", "")
    ranks_here = f"{counted(ranks_on_node, 'rank')} here"
    seen = f"{facts.cpus}; {ranks_here}, threads of each: {share.threads}"
    seen += f", OMP_NUM_THREADS={text}" if text else ""
    fix = "unset OMP_NUM_THREADS"
    if text and not asked_threads(environ):
        return Diagnosis("cores", "warning", seen, "a number of threads", fix)
    if share.threads > facts.cpus.count:
        expected = f"at most {facts.cpus.count} threads per process: more of them wait for each other"
        return Diagnosis("cores", "warning", seen, expected, fix)
    return Diagnosis("cores", "ok", seen)


def check_user(facts: HostFacts, environ: Mapping[str, str]) -> Diagnosis:
    """Checks that the user has a name and a home folder: libraries use both for their caches and fail without them."""
    if facts.user is None:
        return skipped("user", "the passwd entry cannot be read (the directory service may be hanging)")
    user = facts.user
    name = user.name or environ.get("USER") or environ.get("LOGNAME") or ""
    seen = f"uid {user.uid}, {user.name or 'no passwd entry'}, HOME={user.home or '(not set)'}"
    if not name:
        return Diagnosis("user", "warning", seen, "a passwd entry, or USER set", f"export USER=uid{user.uid}")
    if not user.home_exists:
        return Diagnosis("user", "warning", seen, "a home folder that exists", "export HOME=/tmp")
    return Diagnosis("user", "ok", seen)


def check_container(facts: HostFacts) -> Diagnosis:
    """Reports the kind of container, as the fixes differ between them."""
    return Diagnosis("container", "ok", facts.container or "none")


def check_folder(folder: Folder) -> Diagnosis:
    """Checks that a folder answers, is writable and has space, and that a compiler cache is not on the network."""
    check, is_output = folder.purpose, folder.fixed_by == "output_path"
    other = "output_path=FOLDER" if is_output else f"export {folder.fixed_by}=/tmp/cache-$(id -u)"
    if not folder.answered:
        seen = f"{folder.path}: its file system does not answer"
        return Diagnosis(check, "error", seen, "a file system that answers", other)
    place = f"{folder.path} on {folder.kind or 'an unknown file system'}, {size_text(folder.free)} free"
    needed = folder.purpose in ("output", "data cache")
    if folder.refusal:
        level: Level = "error" if needed else "warning"
        return Diagnosis(check, level, f"{folder.path}: {folder.refusal}", "a writable folder", other)
    if folder.free < NO_DISK and needed:
        return Diagnosis(check, "error", place, f"{size_text(LITTLE_DISK)} or more", other)
    if folder.on_network and not is_output and folder.purpose != "data cache":
        seen = f"{place} ({folder.source})"
        return Diagnosis(check, "warning", seen, "a local folder: all ranks lock and rename files in it", other)
    if folder.free < LITTLE_DISK:
        return Diagnosis(check, "warning", place, f"{size_text(LITTLE_DISK)} or more", other)
    return Diagnosis(check, "ok", place)

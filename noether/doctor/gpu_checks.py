"""Checks the health of the GPUs and the networks that NCCL uses through libfabric. Pure functions of the facts."""

from collections.abc import Iterator, Mapping, Sequence

from noether.doctor.diagnosis import Diagnosis, Level, skipped
from noether.doctor.gpu_health import GpuHealth
from noether.doctor.host_facts import HostFacts

BROKEN = {48: "an uncorrected memory error", 64: "faulty memory could not be remapped", 79: "it fell off the bus",
          95: "an uncontained memory error", 119: "its system processor timed out",
          120: "its system processor failed", 140: "an uncorrected memory error"}  # fmt: skip
SUSPECT = {62: "an internal controller halted", 63: "faulty memory was remapped", 74: "an NVLink failed",
           92: "many corrected memory errors", 94: "a contained memory error"}  # fmt: skip
"""Xid errors of the driver that the hardware causes (NVIDIA's catalogue of Xid errors). Other numbers, above all 13,
31, 43 and 45, come from programs."""
SLOW_CLOCK = 0.8
"""A slowed GPU is reported with its clock if that is below this share of the full clock."""


def check_gpu_health(facts: HostFacts) -> list[Diagnosis]:
    """Returns a finding for each problem of a GPU, or one "ok" finding if there is none."""
    if facts.gpu_health is None:
        return [skipped("gpu health", "the driver did not answer")]
    if not facts.gpu_health:
        return [Diagnosis("gpu health", "ok", "no NVIDIA GPU here")]
    found = [
        *(finding for gpu in facts.gpu_health for finding in _of_gpu(gpu)),
        *_of_links(facts.gpu_health),
        *_of_kernel_log(facts),
    ]
    if found:
        return found
    clocks = ", ".join(f"{gpu.clock} of {gpu.most_clock} MHz" for gpu in facts.gpu_health if gpu.clock is not None)
    links = sum(gpu.links_up for gpu in facts.gpu_health)
    words = [f"{len(facts.gpu_health)} GPUs without errors", clocks, f"{links} NVLinks up" if links else ""]
    words.append("the kernel log cannot be read here" if facts.xids is None else "no Xid errors in the kernel log")
    return [Diagnosis("gpu health", "ok", "; ".join(word for word in words if word))]


def _of_gpu(gpu: GpuHealth) -> Iterator[Diagnosis]:
    name, look = f"GPU {gpu.index}", f"nvidia-smi -i {gpu.index} -q -d"
    reset = f"nvidia-smi --gpu-reset -i {gpu.index}      (with nothing running on it; or restart the host)"
    if gpu.lost:
        seen = f"{name} does not answer: the driver lists it and cannot reach it"
        fix = "restart the host, or leave this GPU out by CUDA_VISIBLE_DEVICES"
        yield Diagnosis("gpu health", "error", seen, "a GPU that answers", fix)
    if gpu.remap_failed:
        fix = f"{look} ROW_REMAPPER      (stop using this GPU: it needs to be replaced)"
        yield Diagnosis("gpu health", "error", f"{name}: memory rows could not be remapped", "working memory", fix)
    elif gpu.remap_pending:
        seen = f"{name}: memory rows are waiting to be remapped"
        yield Diagnosis("gpu health", "warning", seen, "a reset, which remaps them", reset)
    if gpu.uncorrected:
        seen = f"{name}: {gpu.uncorrected} uncorrected memory errors since the driver was loaded"
        yield Diagnosis("gpu health", "error", seen, "none: results may be wrong", reset)
    if gpu.ecc is False:
        fix = f"nvidia-smi -i {gpu.index} -e 1      (and restart the host)"
        yield Diagnosis("gpu health", "warning", f"{name}: ECC is off", "ECC on: it corrects memory errors", fix)
    if gpu.slowed_by:
        clock = ""
        if gpu.clock is not None and gpu.most_clock and gpu.clock < SLOW_CLOCK * gpu.most_clock:
            clock = f": {gpu.clock} of {gpu.most_clock} MHz"
        seen = f"{name} is slowed down by {', '.join(gpu.slowed_by)}{clock}"
        fix = f"{look} PERFORMANCE,TEMPERATURE,POWER      (check its cooling and power supply)"
        yield Diagnosis("gpu health", "warning", seen, "its full clock: all ranks wait for the slowest", fix)


def _of_links(gpus: Sequence[GpuHealth]) -> Iterator[Diagnosis]:
    """NVLinks that are down where another GPU of the host has them up.

    What is down on every GPU was never connected: a bridge between PCIe cards uses some of their links.
    """
    most = max(gpu.links_up for gpu in gpus)
    for gpu in gpus:
        if gpu.links_down and gpu.links_up < most:
            seen = f"GPU {gpu.index}: {most - gpu.links_up} of {most} NVLinks are down"
            fix = f"nvidia-smi nvlink --status -i {gpu.index}"
            yield Diagnosis("gpu health", "warning", seen, "as many up as another GPU here has: NCCL uses them", fix)


def _of_kernel_log(facts: HostFacts) -> Iterator[Diagnosis]:
    for address, number in facts.xids or ():
        what = BROKEN.get(number) or SUSPECT.get(number)
        if what:
            level: Level = "error" if number in BROKEN else "warning"
            fix = "dmesg | grep Xid      (then reset that GPU or restart the host)"
            seen = f"the GPU at {address} reported Xid {number}: {what}"
            yield Diagnosis("gpu health", level, seen, "no hardware errors since the host started", fix)


def check_fabric(facts: HostFacts, environ: Mapping[str, str]) -> Diagnosis:
    """Checks that NCCL can use Slingshot or EFA: without libfabric and NCCL's plugin for it, it silently uses TCP."""
    found = facts.fabric
    if found is None:
        return skipped("fabric", "/dev and /sys cannot be read")
    if not found.cxi and not found.efa:
        return Diagnosis("fabric", "ok", "no Slingshot, no EFA")
    seen = ", ".join((*found.cxi, *found.efa))
    needed = {
        "libfabric.so.1": found.libfabric,
        "libcxi.so.1": found.libcxi or not found.cxi,
        "NCCL plugin (libnccl-net.so)": bool(found.plugin),
    }
    missing = ", no ".join(name for name, is_there in needed.items() if not is_there)
    if missing:
        fix = "the host's libfabric and its NCCL plugin in LD_LIBRARY_PATH      (docs/containers.md shows how)"
        return Diagnosis("fabric", "warning", f"{seen}; no {missing}", "all of them: else NCCL silently uses TCP", fix)
    if environ.get("NCCL_NET_PLUGIN") == "none":
        return Diagnosis("fabric", "warning", f"{seen}; NCCL_NET_PLUGIN=none", "the plugin", "unset NCCL_NET_PLUGIN")
    if environ.get("NCCL_NET", "").lower() in ("socket", "ib"):
        told = f"{seen}; NCCL_NET={environ['NCCL_NET']}"
        return Diagnosis("fabric", "warning", told, "libfabric", 'export NCCL_NET="AWS Libfabric"')
    return Diagnosis("fabric", "ok", f"{seen}; {found.plugin}")

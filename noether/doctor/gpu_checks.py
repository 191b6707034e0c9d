"""Checks of the GPUs' health and of networks that NCCL reaches through libfabric. Pure functions of the facts."""

from collections.abc import Iterator, Mapping

from noether.doctor.diagnosis import Diagnosis, skipped
from noether.doctor.gpu_health import Fabric, GpuHealth
from noether.doctor.host_facts import HostFacts

BROKEN = {48: "an uncorrected memory error", 64: "memory could not be replaced", 79: "it fell off the bus",
          95: "an uncontained memory error", 119: "its system processor timed out",
          120: "its system processor failed", 140: "an uncorrected memory error"}  # fmt: skip
SUSPECT = {62: "an internal controller halted", 63: "memory was replaced", 74: "an NVLink failed",
           92: "many corrected memory errors", 94: "a contained memory error"}  # fmt: skip
"""Reports of the driver that the hardware caused (NVIDIA's catalogue of Xid errors). The others are the program's:
13, 31, 43 and 45 above all."""
SLOW_CLOCK = 0.8
"""Share of its clock below which a GPU that is held down is named with it."""


def check_gpu_health(facts: HostFacts) -> list[Diagnosis]:
    """Returns a finding for each thing that is wrong with a GPU, or one that nothing is."""
    if facts.gpu_health is None:
        return [skipped("gpu health", "the driver does not tell")]
    if not facts.gpu_health:
        return [Diagnosis("gpu health", "ok", "no NVIDIA GPU here")]
    found = [finding for gpu in facts.gpu_health for finding in _of_gpu(gpu)]
    reports = list(_of_kernel_log(facts))
    if not any(finding.level != "ok" for finding in (*found, *reports)):
        clocks = ", ".join(f"{gpu.clock} of {gpu.most_clock} MHz" for gpu in facts.gpu_health if gpu.clock is not None)
        links = sum(gpu.links_up for gpu in facts.gpu_health)
        words = [f"{len(facts.gpu_health)} GPUs without errors", clocks, f"{links} NVLinks up" if links else ""]
        words.append("the kernel's log may not be read here" if facts.xids is None else "no Xid in the kernel's log")
        return [Diagnosis("gpu health", "ok", "; ".join(word for word in words if word))]
    return [*found, *reports]


def _of_gpu(gpu: GpuHealth) -> Iterator[Diagnosis]:
    name, look = f"GPU {gpu.index}", f"nvidia-smi -i {gpu.index} -q -d"
    reset = f"nvidia-smi --gpu-reset -i {gpu.index}      (nothing may run on it; or restart the host)"
    if gpu.remap_failed:
        fix = f"{look} ROW_REMAPPER      (take it out of use: it is to be replaced)"
        yield Diagnosis("gpu health", "error", f"{name}: rows of memory could not be replaced", "sound memory", fix)
    elif gpu.remap_pending:
        yield Diagnosis("gpu health", "warning", f"{name}: rows of memory wait to be replaced", "a reset", reset)
    if gpu.uncorrected:
        seen = f"{name}: {gpu.uncorrected} uncorrected memory errors since the driver was loaded"
        yield Diagnosis("gpu health", "error", seen, "none: results may be wrong", reset)
    if gpu.ecc is False:
        fix = f"nvidia-smi -i {gpu.index} -e 1      (and restart the host)"
        yield Diagnosis("gpu health", "warning", f"{name}: ECC is off", "memory errors that are corrected", fix)
    if gpu.slowed_by:
        clock = ""
        if gpu.clock is not None and gpu.most_clock and gpu.clock < SLOW_CLOCK * gpu.most_clock:
            clock = f": {gpu.clock} of {gpu.most_clock} MHz"
        seen = f"{name} is slowed down by {', '.join(gpu.slowed_by)}{clock}"
        fix = f"{look} PERFORMANCE,TEMPERATURE,POWER      (cooling, power supply)"
        yield Diagnosis("gpu health", "warning", seen, "its full clock: the slowest rank sets the pace", fix)
    if gpu.links_up and gpu.links_down:
        seen = f"{name}: {gpu.links_down} of {gpu.links_up + gpu.links_down} NVLinks are down"
        fix = f"nvidia-smi nvlink --status -i {gpu.index}"
        yield Diagnosis("gpu health", "warning", seen, "all of them up: NCCL takes slower ways", fix)


def _of_kernel_log(facts: HostFacts) -> Iterator[Diagnosis]:
    for address, number in facts.xids or ():
        what = BROKEN.get(number) or SUSPECT.get(number)
        if what:
            level = "error" if number in BROKEN else "warning"
            fix = "dmesg | grep Xid      (then a reset of that GPU, or a restart of the host)"
            seen = f"the GPU at {address} reported Xid {number}: {what}"
            yield Diagnosis("gpu health", level, seen, "no report of the hardware since the start of the host", fix)


def check_fabric(facts: HostFacts, environ: Mapping[str, str]) -> Diagnosis:
    """Slingshot and EFA are fast only through libfabric and NCCL's plugin for it; without, NCCL takes TCP silently."""
    found = facts.fabric
    if found is None:
        return skipped("fabric", "/dev and /sys cannot be looked at")
    if not found.cxi and not found.efa:
        return Diagnosis("fabric", "ok", "no Slingshot, no EFA")
    seen, missing = ", ".join((*found.cxi, *found.efa)), _missing(found)
    if missing:
        fix = "the host's libfabric and its NCCL plugin in LD_LIBRARY_PATH      (docs/containers.md has the lines)"
        return Diagnosis("fabric", "warning", f"{seen}; no {missing}", "all three: else NCCL silently uses TCP", fix)
    if environ.get("NCCL_NET_PLUGIN") == "none":
        return Diagnosis("fabric", "warning", f"{seen}; NCCL_NET_PLUGIN=none", "the plugin", "unset NCCL_NET_PLUGIN")
    if environ.get("NCCL_NET", "").lower() in ("socket", "ib"):
        told = f"{seen}; NCCL_NET={environ['NCCL_NET']}"
        return Diagnosis("fabric", "warning", told, "libfabric", 'export NCCL_NET="AWS Libfabric"')
    return Diagnosis("fabric", "ok", f"{seen}; {found.plugin}")


def _missing(found: Fabric) -> str:
    needed = {
        "libfabric.so.1": found.libfabric,
        "libcxi.so.1": found.libcxi or not found.cxi,
        "NCCL plugin (libnccl-net.so)": bool(found.plugin),
    }
    return ", no ".join(name for name, is_there in needed.items() if not is_there)

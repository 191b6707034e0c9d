"""Checks the health of NVIDIA GPUs (NVML, kernel log), and the networks that NCCL uses through libfabric."""

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from noether.doctor.report import Diagnosis, Level, first_of_problems, skipped
from noether.launch.detect.driver import NOT_FOR_US

if TYPE_CHECKING:
    from noether.doctor.host_facts import HostFacts

SLOWED_BY = {
    0x08: "hardware slowdown", 0x20: "software thermal limit", 0x40: "hardware thermal limit", 0x80: "power brake",
}  # fmt: skip
"""The bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) for a GPU that heat or the power supply slows down. The
power cap is not included, because a busy GPU reaches its cap by design."""
UNCORRECTED, VOLATILE, CLOCK_SM, LINKS = 1, 0, 1, 18
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC (errors since the driver was loaded), NVML_CLOCK_SM, and
NVML_NVLINK_MAX_LINKS."""
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
BROKEN = {48: "an uncorrected memory error", 64: "faulty memory could not be remapped", 79: "it fell off the bus",
          95: "an uncontained memory error", 119: "its system processor timed out",
          120: "its system processor failed", 140: "an uncorrected memory error"}  # fmt: skip
SUSPECT = {62: "an internal controller halted", 63: "faulty memory was remapped", 74: "an NVLink failed",
           92: "many corrected memory errors", 94: "a contained memory error"}  # fmt: skip
"""BROKEN and SUSPECT: the Xid errors that hardware causes (NVIDIA's catalogue of Xid errors). Programs cause other Xid
errors, above all 13, 31, 43 and 45."""
SLOW_CLOCK = 0.8
"""The finding about a slowed GPU states its clock rate if the rate is below this share of the highest rate."""


@dataclass(frozen=True)
class GpuHealth:
    """The health of one GPU. A value that the GPU or its driver does not report is None.

    ecc: whether ECC corrects memory errors. uncorrected: count of uncorrected errors since the driver was loaded.
    remap_pending: whether memory rows will be remapped at the next reset. remap_failed: whether remapping failed.
    slowed_by: why the clock is reduced. clock, most_clock: current and highest clock rate of the processors, in MHz.
    links_up, links_down: counts of NVLinks. lost: whether the driver lists the GPU but cannot reach it.
    """

    index: int
    ecc: bool | None = None
    uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowed_by: tuple[str, ...] = ()
    clock: int | None = None
    most_clock: int | None = None
    links_up: int = 0
    links_down: int = 0
    lost: bool = False


@dataclass(frozen=True)
class Fabric:
    """The Slingshot (cxi) and EFA devices, whether their libraries can be loaded, and the path of NCCL's plugin."""

    cxi: tuple[str, ...] = ()
    efa: tuple[str, ...] = ()
    libfabric: bool = False
    libcxi: bool = False
    plugin: str = ""


def read_health(nvml: Any) -> tuple[GpuHealth, ...]:
    """Return the health of every GPU. `nvml` is the initialised module pynvml, or a mock of it."""

    def ask(name: str, *arguments: Any) -> Any:
        # Not every GPU supports each function, and old libraries lack some.
        with contextlib.suppress(AttributeError, nvml.NVMLError):
            return getattr(nvml, name)(*arguments)
        return None

    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:
            if error.value not in NOT_FOR_US:
                found.append(GpuHealth(index, lost=True))
            continue
        ecc, rows = ask("nvmlDeviceGetEccMode", gpu), ask("nvmlDeviceGetRemappedRows", gpu)
        if (reasons := ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)) is None:
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        links = [ask("nvmlDeviceGetNvLinkState", gpu, link) for link in range(LINKS)]
        found.append(
            GpuHealth(
                index, None if ecc is None else bool(ecc[0]),
                ask("nvmlDeviceGetTotalEccErrors", gpu, UNCORRECTED, VOLATILE),
                remap_pending=None if rows is None else bool(rows[2]),
                remap_failed=None if rows is None else bool(rows[3]),
                slowed_by=tuple(name for bit, name in SLOWED_BY.items() if (reasons or 0) & bit),
                clock=ask("nvmlDeviceGetClockInfo", gpu, CLOCK_SM),
                most_clock=ask("nvmlDeviceGetMaxClockInfo", gpu, CLOCK_SM),
                links_up=links.count(1), links_down=links.count(0),
            )
        )  # fmt: skip
    return tuple(found)


def read_xids(path: Path = Path("/dev/kmsg")) -> tuple[tuple[str, int], ...]:
    """Return each different GPU error in the kernel log as (address, Xid number), in the order of the log.

    OSError: this user has no permission to read the log.
    """
    descriptor, log = os.open(path, os.O_RDONLY | os.O_NONBLOCK), b""
    # The errors mean that the log has ended, or that the kernel has overwritten a part. Use the lines read so far.
    with os.fdopen(descriptor, "rb", buffering=0) as file, contextlib.suppress(BlockingIOError, BrokenPipeError):
        while part := file.read(16384):
            log += part
    found = XID.findall(log.decode(errors="replace"))
    return tuple(dict.fromkeys((address, int(number)) for address, number in found))


def can_load(library: str) -> bool:
    """Return whether the dynamic linker finds a library and can load it."""
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def probe_fabric(
    environ: Mapping[str, str],
    devices: Path = Path("/dev"),
    sysfs: Path = Path("/sys/class/infiniband"),
    loads: Callable[[str], bool] = can_load,
) -> Fabric:
    """Find Slingshot and EFA devices, and the libraries and the plugin that NCCL needs for them."""

    def is_efa(device: Path) -> bool:
        return device.name.startswith("efa") or (device / "device" / "driver").resolve().name == "efa"

    # The names of the files that NCCL tries to load as its network plugin, from NCCL's documentation.
    asked = environ.get("NCCL_NET_PLUGIN", "")
    by_default = ["libnccl-net.so", "libnccl-net-ofi.so"]
    names = by_default if asked in ("", "none") else [asked, f"libnccl-net-{asked}.so"]
    system = ("/usr/lib64", "/usr/lib", "/usr/local/lib", f"/usr/lib/{os.uname().machine}-linux-gnu")
    places = [place for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    plugins = (Path(place) / name for place in (*places, *system) for name in names)
    return Fabric(
        cxi=tuple(sorted(path.name for path in devices.glob("cxi[0-9]*"))),
        efa=tuple(sorted(path.name for path in sysfs.glob("*") if is_efa(path))),
        libfabric=loads("libfabric.so.1"),
        libcxi=loads("libcxi.so.1"),
        plugin=next((str(path) for path in plugins if path.is_file()), ""),
    )


def check_gpu_health(facts: "HostFacts") -> list[Diagnosis]:
    """Return a finding for each problem of a GPU, or a single "ok" finding if no GPU has a problem."""
    gpus = facts.gpu_health
    if gpus is None:
        return [skipped("gpu health", "the driver did not answer")]
    if not gpus:
        return [Diagnosis("gpu health", "ok", "no NVIDIA GPU here")]
    found = [Diagnosis("gpu health", *problem) for problem in _problems(gpus, facts.xids or ())]
    if found:
        return found
    clocks = ", ".join(f"{gpu.clock} of {gpu.most_clock} MHz" for gpu in gpus if gpu.clock is not None)
    links = sum(gpu.links_up for gpu in gpus)
    words = [f"{len(gpus)} GPUs without errors", clocks, f"{links} NVLinks up" if links else ""]
    words.append("the kernel log cannot be read here" if facts.xids is None else "no Xid errors in the kernel log")
    return [Diagnosis("gpu health", "ok", "; ".join(word for word in words if word))]


def _problems(gpus: Sequence[GpuHealth], xids: Sequence[tuple[str, int]]) -> Iterator[tuple[Level, str, str, str]]:
    """Yield (level, seen, expected, fix) for every problem.

    If every GPU has links that are down, they were never connected: a bridge between PCIe cards uses only some links.
    """
    most_links = max(gpu.links_up for gpu in gpus)
    for gpu in gpus:
        yield from _of_gpu(gpu)
        if gpu.links_down and gpu.links_up < most_links:
            seen = f"GPU {gpu.index}: {most_links - gpu.links_up} of {most_links} NVLinks are down"
            fix = f"nvidia-smi nvlink --status -i {gpu.index}"
            yield "warning", seen, "the same count of NVLinks up as on another GPU here: NCCL uses them", fix
    for address, number in xids:
        if what := BROKEN.get(number) or SUSPECT.get(number):
            seen = f"the GPU at {address} reported Xid {number}: {what}"
            fix = "dmesg | grep Xid      (then reset that GPU or restart the host)"
            level: Level = "error" if number in BROKEN else "warning"
            yield level, seen, "no hardware errors since the host started", fix


def _of_gpu(gpu: GpuHealth) -> Iterator[tuple[Level, str, str, str]]:
    name, look = f"GPU {gpu.index}", f"nvidia-smi -i {gpu.index} -q -d"
    reset = f"nvidia-smi --gpu-reset -i {gpu.index}      (with nothing running on it; or restart the host)"
    if gpu.lost:
        fix = "restart the host, or leave this GPU out by CUDA_VISIBLE_DEVICES"
        yield "error", f"{name} does not answer: the driver lists it but cannot reach it", "a GPU that answers", fix
    if gpu.remap_failed:
        fix = f"{look} ROW_REMAPPER      (stop using this GPU: it needs to be replaced)"
        yield "error", f"{name}: memory rows could not be remapped", "working memory", fix
    elif gpu.remap_pending:
        yield "warning", f"{name}: memory rows are waiting to be remapped", "a reset, which remaps them", reset
    if gpu.uncorrected:
        seen = f"{name}: {gpu.uncorrected} uncorrected memory errors since the driver was loaded"
        yield "error", seen, "none: results may be wrong", reset
    if gpu.ecc is False:
        fix = f"nvidia-smi -i {gpu.index} -e 1      (and restart the host)"
        yield "warning", f"{name}: ECC is off", "ECC on: it corrects memory errors", fix
    if gpu.slowed_by:
        is_slow = gpu.clock is not None and gpu.most_clock and gpu.clock < SLOW_CLOCK * gpu.most_clock
        clock = f": {gpu.clock} of {gpu.most_clock} MHz" if is_slow else ""
        fix = f"{look} PERFORMANCE,TEMPERATURE,POWER      (check its cooling and power supply)"
        seen = f"{name} is slowed down by {', '.join(gpu.slowed_by)}{clock}"
        yield "warning", seen, "its full clock: all ranks wait for the slowest", fix


def check_fabric(facts: "HostFacts", environ: Mapping[str, str]) -> Diagnosis:
    """Check that NCCL can use Slingshot or EFA. Without libfabric and NCCL's plugin for it, NCCL silently uses TCP."""
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
    library_path = "the host's libfabric and its NCCL plugin in LD_LIBRARY_PATH      (docs/containers.md shows how)"
    net, plugin = environ.get("NCCL_NET", ""), environ.get("NCCL_NET_PLUGIN")
    socket = 'export NCCL_NET="AWS Libfabric"'
    return first_of_problems(
        "fabric",
        f"{seen}; {found.plugin}",
        (missing, "warning", f"{seen}; no {missing}", "all of them: otherwise NCCL silently uses TCP", library_path),
        (plugin == "none", "warning", f"{seen}; NCCL_NET_PLUGIN=none", "the plugin", "unset NCCL_NET_PLUGIN"),
        (net.lower() in ("socket", "ib"), "warning", f"{seen}; NCCL_NET={net}", "libfabric", socket),
    )

"""Reads the health of NVIDIA GPUs from NVML and the kernel log, and finds fast networks. Runs in the child process."""

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from noether.launch.detect.driver import NOT_FOR_US, ask_nvml

SLOWED_BY = (
    (0x08, "hardware slowdown"),
    (0x20, "software thermal limit"),
    (0x40, "hardware thermal limit"),
    (0x80, "power brake"),
)
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) that mean heat or the power supply slows the GPU down. A
power cap is not among them: a busy GPU reaches it by design."""
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
UNCORRECTED, VOLATILE = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED, and NVML_VOLATILE_ECC: errors since the driver was loaded."""
LINKS = 18
"""NVML_NVLINK_MAX_LINKS."""


@dataclass(frozen=True)
class GpuHealth:
    """One GPU. Values that the GPU or its driver does not report are None.

    lost: the driver lists it and cannot reach it.
    ecc: whether ECC corrects memory errors. uncorrected: uncorrected memory errors since the driver was loaded.
    remap_pending: whether memory rows wait for a reset to be remapped. remap_failed: whether remapping failed.
    slowed_by: why its clock is reduced. clock, most_clock: current and highest clock of its processors, in MHz.
    links_up, links_down: numbers of NVLinks.
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
    """Networks that NCCL uses through libfabric: Slingshot and EFA.

    cxi, efa: the devices of each. libfabric, libcxi: whether the libraries can be loaded. plugin: path of NCCL's plugin
    for libfabric, "" if there is none.
    """

    cxi: tuple[str, ...] = ()
    efa: tuple[str, ...] = ()
    libfabric: bool = False
    libcxi: bool = False
    plugin: str = ""


def read_health(nvml: Any) -> list[GpuHealth]:
    """Returns the health of every GPU. `nvml` is pynvml, already initialised, or a stand-in for it."""

    def ask(name: str, *arguments: Any) -> Any:
        # GPUs differ in what they support, and older libraries lack some functions.
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
        reasons = ask("nvmlDeviceGetCurrentClocksEventReasons", gpu)
        if reasons is None:
            reasons = ask("nvmlDeviceGetCurrentClocksThrottleReasons", gpu)
        links = [ask("nvmlDeviceGetNvLinkState", gpu, link) for link in range(LINKS)]
        found.append(
            GpuHealth(
                index=index,
                ecc=None if ecc is None else bool(ecc[0]),
                uncorrected=ask("nvmlDeviceGetTotalEccErrors", gpu, UNCORRECTED, VOLATILE),
                remap_pending=None if rows is None else bool(rows[2]),
                remap_failed=None if rows is None else bool(rows[3]),
                slowed_by=tuple(name for bit, name in SLOWED_BY if (reasons or 0) & bit),
                clock=ask("nvmlDeviceGetClockInfo", gpu, 1),  # NVML_CLOCK_SM
                most_clock=ask("nvmlDeviceGetMaxClockInfo", gpu, 1),
                links_up=links.count(1),
                links_down=links.count(0),
            )
        )
    return found


def probe_gpus(seconds: float) -> list[GpuHealth]:
    """Returns the health of this host's GPUs, or an empty list if no driver answers, which check_driver reports."""
    try:
        found = ask_nvml(lambda nvml: (nvml.nvmlInit(), [asdict(gpu) for gpu in read_health(nvml)])[1], seconds)
    except (ImportError, OSError):
        return []
    return [GpuHealth(**gpu | {"slowed_by": tuple(gpu["slowed_by"])}) for gpu in found]


def xids(log: str) -> list[tuple[str, int]]:
    """Returns the GPU errors in a kernel log as (address, Xid number), without repeats, in the order of the log."""
    return list(dict.fromkeys((address, int(number)) for address, number in XID.findall(log)))


def read_kernel_log(path: Path = Path("/dev/kmsg")) -> str:
    """Returns the kernel log.

    Raises:
        OSError: this user may not read it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    parts = []
    try:
        while part := os.read(descriptor, 16384):
            parts.append(part)
    except (BlockingIOError, BrokenPipeError):
        pass  # The end of the log; or the kernel overwrote part of it during the read: use what was read.
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def can_load(library: str) -> bool:
    """Returns whether the dynamic linker finds a library and can load it."""
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
    """Looks for Slingshot and EFA, and for what NCCL needs to use them."""
    return Fabric(
        cxi=tuple(sorted(path.name for path in devices.glob("cxi[0-9]*"))),
        efa=tuple(sorted(path.name for path in sysfs.glob("*") if _is_efa(path))),
        libfabric=loads("libfabric.so.1"),
        libcxi=loads("libcxi.so.1"),
        plugin=_plugin(environ),
    )


def _is_efa(device: Path) -> bool:
    with contextlib.suppress(OSError):
        return device.name.startswith("efa") or (device / "device" / "driver").resolve().name == "efa"
    return False


def _plugin(environ: Mapping[str, str]) -> str:
    """Returns the file that NCCL would load as its network plugin, "" for none. Its documentation gives the names."""
    asked = environ.get("NCCL_NET_PLUGIN", "")
    by_default = ["libnccl-net.so", "libnccl-net-ofi.so"]
    names = by_default if asked in ("", "none") else [asked, f"libnccl-net-{asked}.so"]
    system = ("/usr/lib64", "/usr/lib", "/usr/local/lib", f"/usr/lib/{os.uname().machine}-linux-gnu")
    places = [place for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    candidates = (Path(place) / name for place in (*places, *system) for name in names)
    return next((str(path) for path in candidates if path.is_file()), "")

"""The health of NVIDIA GPUs as NVML and the kernel's log tell it, and of the host's fast network. Read in the child."""

import contextlib
import ctypes
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SLOWED_BY = (
    (0x08, "hardware slowdown"),
    (0x20, "software thermal limit"),
    (0x40, "hardware thermal limit"),
    (0x80, "power brake"),
)
"""Bits of nvmlDeviceGetCurrentClocksEventReasons (nvml.h) that slow a GPU down against its will. A power cap is not
among them: a busy GPU runs into it by design."""
XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d+)")
UNCORRECTED, VOLATILE = 1, 0
"""NVML_MEMORY_ERROR_TYPE_UNCORRECTED; NVML_VOLATILE_ECC: since the driver was loaded."""
LINKS = 18
"""NVML_NVLINK_MAX_LINKS."""


@dataclass(frozen=True)
class GpuHealth:
    """One GPU. What it, or its driver, does not tell is None.

    ecc: whether memory errors are corrected. uncorrected: memory errors since the driver was loaded that were not.
    remap_pending, remap_failed: rows of memory that wait for a reset to be replaced; that could not be replaced.
    slowed_by: why its clock is held down. clock, most_clock: of its processors, in MHz. links_up, links_down: NVLinks.
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


@dataclass(frozen=True)
class Fabric:
    """Networks that NCCL reaches through libfabric: Slingshot and EFA.

    cxi, efa: their devices. libfabric, libcxi: whether the libraries are found. plugin: NCCL's plugin for it, as found.
    """

    cxi: tuple[str, ...] = ()
    efa: tuple[str, ...] = ()
    libfabric: bool = False
    libcxi: bool = False
    plugin: str = ""


def read_health(nvml: Any) -> list[GpuHealth]:
    """Returns the health of every GPU. `nvml` is pynvml, or a table in its place, and is initialised."""

    def ask(name: str, *arguments: Any) -> Any:
        # Each GPU supports another part of it; older libraries lack functions.
        with contextlib.suppress(AttributeError, nvml.NVMLError):
            return getattr(nvml, name)(*arguments)
        return None

    found = []
    for index in range(nvml.nvmlDeviceGetCount()):
        gpu = nvml.nvmlDeviceGetHandleByIndex(index)
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


def probe_gpus() -> list[GpuHealth]:
    """Returns the health of this host's GPUs; none where no driver answers."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # ImportError, or any of NVML's errors for "no driver here": check_driver says so.
        return []
    return read_health(pynvml)


def xids(log: str) -> list[tuple[str, int]]:
    """Returns the reports of GPU errors in a kernel log: (address, number), each once, in the order of the log."""
    return list(dict.fromkeys((address, int(number)) for address, number in XID.findall(log)))


def read_kernel_log(path: Path = Path("/dev/kmsg")) -> str:
    """Returns the kernel's log as this user may read it.

    Raises:
        OSError: this user may not.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    parts = []
    try:
        while part := os.read(descriptor, 16384):
            parts.append(part)
    except BlockingIOError:
        pass  # That was all of it.
    except BrokenPipeError:
        pass  # It was overwritten while it was read: what was read is what there is.
    finally:
        os.close(descriptor)
    return b"".join(parts).decode(errors="replace")


def probe_fabric(
    environ: Mapping[str, str],
    devices: Path = Path("/dev"),
    sysfs: Path = Path("/sys/class/infiniband"),
    loads: Callable[[str], bool] | None = None,
) -> Fabric:
    """Looks for Slingshot and EFA, and for what NCCL needs to use them."""
    loads = loads or _loads
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
    """Returns the file that NCCL would load as its network plugin, by the names of its documentation; "" for none."""
    asked = environ.get("NCCL_NET_PLUGIN", "")
    names = (
        [asked, f"libnccl-net-{asked}.so"] if asked and asked != "none" else ["libnccl-net.so", "libnccl-net-ofi.so"]
    )
    system = ("/usr/lib64", "/usr/lib", "/usr/local/lib", f"/usr/lib/{os.uname().machine}-linux-gnu")
    places = [place for place in environ.get("LD_LIBRARY_PATH", "").split(":") if place]
    candidates = (Path(place) / name for place in (*places, *system) for name in names)
    return next((str(path) for path in candidates if path.is_file()), "")


def _loads(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True

"""Where am I: each launcher in turn is asked whether it started this process; all are listed here."""

from collections.abc import Callable, Mapping

from noether.launch.devices import DeviceInventory, GpuDriver, NvmlDriver, find_devices
from noether.launch.local import local_placement
from noether.launch.placement import LaunchRequest, Placement

Launcher = Callable[[LaunchRequest, Mapping[str, str], DeviceInventory, str], Placement | None]
"""A launcher is one file and one pure function: (request, environ, inventory, host) -> the placement, or None
when the environment shows that something else started this process. Where it did start the process and what
it says makes no sense, it raises RequestError: a half-set environment must not fall through to the next."""

LAUNCHERS: tuple[Launcher, ...] = (
    # A new launcher is a file beside local.py and a line here. The first that answers is taken, so one that
    # can run inside another (torchrun inside a Slurm job) comes before it.
    local_placement,
)


def resolve_placement(
    request: LaunchRequest,
    environ: Mapping[str, str],
    host: str,
    nvml: GpuDriver | None = None,
) -> Placement:
    """Say where this process stands in a run, and why.

    Args:
        request: what the user asked for.
        environ: the environment this process was started with.
        host: the name of this machine.
        nvml: the NVIDIA driver; None asks the real one.

    Raises:
        RequestError: the request and this machine do not fit, or the environment contradicts itself.
    """
    inventory = find_devices(
        environ, request.accelerator, nvml or NvmlDriver(), visible_devices=request.visible_devices
    )
    for launcher in LAUNCHERS:
        placement = launcher(request, environ, inventory, host)
        if placement is not None:
            return placement
    raise AssertionError("the last launcher answers for every environment")

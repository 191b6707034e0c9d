"""Find the launcher that started this process; refuse a single-process command that was started several times."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace

from noether.common.cpus import UsableCpus, share_cpus
from noether.common.errors import RequestError
from noether.launch.detect import local
from noether.launch.detect.devices import GpuDriver, find_devices
from noether.launch.detect.driver import nvml_gpus
from noether.launch.detect.launchers import LAUNCHERS as KNOWN
from noether.launch.detect.limits import read_limits, why_too_large
from noether.launch.detect.mpi import mpi_placement
from noether.launch.detect.placement import LaunchContext, LaunchRequest, Placement
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from noether.launch.detect.slurm.outside import refuse_wrong_place
from noether.launch.detect.slurm.placement import slurm_placement
from noether.launch.detect.torchrun import torchrun_placement

Launcher = Callable[[LaunchRequest, LaunchContext], Placement | None]
"""A function that returns the placement, or None if its launcher did not start this process. RequestError: variables of
its launcher are missing or contradictory; another launcher must not place such a process."""

LAUNCHERS: tuple[Launcher, ...] = (
    # The first placement that a launcher returns is used. A launcher that can run inside another launcher's job, as
    # torchrun and mpirun can in a Slurm job, must come before that launcher. The last one accepts every environment.
    torchrun_placement,
    mpi_placement,
    slurm_placement,
    local.kubernetes_placement,
    local.cluster_placement,
    local.refuse_unknown,
    local.multinode_placement,
    local.local_placement,
)

RANK_VARIABLES = ("SLURM_PROCID", "RANK", local.INDEX, *(row.rank for row in KNOWN if row.rank))
"""The variables in which launchers number their processes from 0. They are read if a process cannot be placed."""


def resolve_placement(
    request: LaunchRequest,
    environ: Mapping[str, str],
    host: str,
    nvml: GpuDriver = nvml_gpus,
    facts: ProcessFacts = NOTHING_KNOWN,
) -> Placement:
    """Return the placement of this process: the ranks of a run that it is responsible for, and the reasons.

    `host`: the name of this machine. `nvml`: a function that lists the GPUs of the NVIDIA driver.

    RequestError: the request does not fit this machine, or variables contradict each other.
    """
    try:
        inventory = find_devices(request, environ, nvml, facts)
    except RequestError as error:
        # This machine may have no GPU because it is a login node. The wrong place is then the cause, and is reported.
        refuse_wrong_place(request, environ, host, facts)
        raise error
    here = LaunchContext(environ, inventory, host, facts)
    answers = (launcher(request, here) for launcher in LAUNCHERS)
    placement = next(answer for answer in answers if answer is not None)
    is_here = request.visible_devices is None
    return _on_this_host(placement, environ, inventory.cpus) if is_here else placement


def _on_this_host(placement: Placement, environ: Mapping[str, str], cpus: UsableCpus) -> Placement:
    """Add the share of this host's CPUs to the placement, and a warning for each limit that is too low for the run."""
    kind = placement.workers[0].device.kind
    too_large = why_too_large(placement.world_size, placement.local_world_size, kind, *read_limits())
    share = share_cpus(cpus, environ, len(placement.workers), placement.local_world_size)
    each = " for each rank" if placement.world_size > 1 else ""
    reasons = {**placement.reasons, "threads": f"{share.threads}{each} ({share.reason})"}
    return replace(placement, cpus=share, reasons=reasons, warnings=(*placement.warnings, *too_large))


def resolve_or_on_cpus(
    request: LaunchRequest, environ: Mapping[str, str], host: str, nvml: GpuDriver, facts: ProcessFacts
) -> tuple[Placement, RequestError | None]:
    """Return the placement and None. If the devices are refused, return a placement on CPUs, and the refusal.

    The meeting point on CPUs is the same as on other devices. The number of ranks, and the ranks here, can differ.

    RequestError: the placement on CPUs is refused too, as by `resolve_placement`.
    """
    try:
        return resolve_placement(request, environ, host, nvml, facts), None
    except RequestError as refusal:
        with suppress(RequestError):
            return resolve_placement(replace(request, accelerator="cpu"), environ, host, nvml, facts), refusal
        raise


ONE_PROCESS = {"slurm": "srun --nodes=1 --ntasks=1 noether {verb} …", "mpi": "mpirun -n 1 noether {verb} …"}


def refuse_several(verb: str, environ: Mapping[str, str], host: str, facts: ProcessFacts) -> None:
    """Raise RequestError if several processes of a single-process command were started: all would write the same files.

    Every process raises. If one process continued while the others exit, the launcher could kill it later.
    """
    try:
        placement = resolve_placement(LaunchRequest(accelerator="cpu"), environ, host, facts=facts)
    except RequestError:
        return  # A run would be refused here, for example on a login node, but a single process can work.
    started = placement.world_size // len(placement.workers)
    if started == 1:
        return
    raise RequestError(
        "one-process-only", f"noether {verb} runs in one process, but {started} were started",
        seen=f"{placement.reasons['launcher']}; {placement.reasons['world_size']}",
        expected="one process, on one device",
        fix=ONE_PROCESS.get(placement.launcher, "noether {verb} …      (without the launcher)").format(verb=verb),
    )  # fmt: skip

"""Refuses to run a single-process command if a launcher started several processes of it."""

from collections.abc import Mapping

from noether.common.errors import RequestError
from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.process_facts import ProcessFacts
from noether.launch.detect.resolve import resolve_placement

ONE_PROCESS = {"slurm": "srun --nodes=1 --ntasks=1 noether {verb} …", "mpi": "mpirun -n 1 noether {verb} …"}


def refuse_several(verb: str, environ: Mapping[str, str], host: str, facts: ProcessFacts) -> None:
    """Refuse a single-process command if several processes were started: they would all write the same files.

    Every process refuses. If only the others left, the launcher might kill the first a while later.

    Raises:
        RequestError: a launcher started several processes.
    """
    try:
        placement = resolve_placement(LaunchRequest(accelerator="cpu"), environ, host, facts=facts)
    except RequestError:
        return  # No run could start here (a login node, for example), but a single process can work.
    started = placement.world_size // len(placement.workers)
    if started == 1:
        return
    raise RequestError(
        "one-process-only",
        f"noether {verb} runs in one process, but {started} were started",
        seen=f"{placement.reasons['launcher']}; {placement.reasons['world_size']}",
        expected="one process, on one device",
        fix=ONE_PROCESS.get(placement.launcher, "noether {verb} …      (without the launcher)").format(verb=verb),
    )

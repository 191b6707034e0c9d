"""Refuses a command that works in one process where a launcher started several of it."""

from collections.abc import Mapping

from noether.environments.placement import LaunchRequest
from noether.environments.process_facts import ProcessFacts
from noether.environments.resolve import resolve_placement
from noether.errors import RequestError

ONE_PROCESS = {"slurm": "srun --nodes=1 --ntasks=1 noether {verb} …", "mpi": "mpirun -n 1 noether {verb} …"}


def refuse_several(verb: str, environ: Mapping[str, str], host: str, facts: ProcessFacts) -> None:
    """Refuse a command that works in one process where several were started: they would write the same files.

    All of them refuse: were only the first to work, a launcher might end it a while after the others have left.

    Args:
        verb: the command, for the words.
        environ: the environment this process was started with.
        host: the name of this machine.
        facts: what the system shows of this process.

    Raises:
        RequestError: a launcher started several processes.
    """
    try:
        placement = resolve_placement(LaunchRequest(accelerator="cpu"), environ, host, facts=facts)
    except RequestError:
        return  # Where no run could start, such as a login node, one process can do its work.
    started = placement.world_size // len(placement.workers)
    if started == 1:
        return
    raise RequestError(
        f"noether {verb} works in one process, and {started} were started",
        seen=f"{placement.reasons['launcher']}; {placement.reasons['world_size']}",
        expected="one process, on one device",
        fix=ONE_PROCESS.get(placement.launcher, "noether {verb} …      (without the launcher)").format(verb=verb),
    )

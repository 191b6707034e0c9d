"""Where a process with an environment made up by a test is placed, and how that is shown."""

from slurm_dumps import four_gpus, no_gpus

from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from noether.launch.detect.resolve import resolve_placement


def place(
    environ: dict[str, str],
    request: LaunchRequest | None = None,
    gpus: bool = False,
    host: str = "box",
    facts: ProcessFacts = NOTHING_KNOWN,
) -> Placement:
    """Resolve as `noether train` would on a host with four GPUs, or none."""
    return resolve_placement(request or LaunchRequest(), environ, host, four_gpus if gpus else no_gpus, facts)


def shown(placement: Placement) -> str:
    """Each of its workers as "rank/local rank/node rank device"."""
    return " ".join(f"{w.rank}/{w.local_rank}/{w.node_rank} {w.device}" for w in placement.workers)

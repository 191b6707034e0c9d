"""Where a process with an environment made up by a test is placed, and how that is shown."""

from slurm_dumps import driver_of, four_gpus, no_gpus

from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from noether.launch.detect.resolve import resolve_placement


def place(
    environ: dict[str, str],
    request: LaunchRequest | None = None,
    gpus: bool | None = None,
    host: str = "",
    facts: ProcessFacts = NOTHING_KNOWN,
) -> Placement:
    """Resolve as `noether train` would on the host that the environment names. `gpus`: four, none; None: as masked."""
    driver = driver_of(environ) if gpus is None else four_gpus if gpus else no_gpus
    return resolve_placement(
        request or LaunchRequest(), environ, host or environ.get("SLURMD_NODENAME", "box"), driver, facts
    )


def shown(placement: Placement) -> str:
    """Each of its workers as "rank/local rank/node rank device"."""
    return " ".join(f"{w.rank}/{w.local_rank}/{w.node_rank} {w.device}" for w in placement.workers)

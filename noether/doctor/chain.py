"""Tests the connection between the ranks step by step: store, gloo, NCCL, bandwidth. Stops at the first failure."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from noether.common.numbers import counted
from noether.doctor.diagnosis import Diagnosis, skipped
from noether.doctor.own_host import TimeBudget
from noether.doctor.world_checks import check_bandwidth
from noether.launch.processes.rank_state import MeetingPoint, named_ranks

Ask = Callable[[dict[str, Any]], list[dict[str, Any]]]
"""Runs one step on every rank and returns the answers."""


@dataclass(frozen=True)
class ChainStep:
    """One step of the chain: its name, its time limit in seconds, what should work, and how to fix it if not."""

    name: str
    seconds: float
    expected: str
    fix: str


STORE = ChainStep(
    "store", 8, "every rank can write to and read from rank 0's store", "master_port=PORT      (an open port)"
)
GLOO = ChainStep(
    "gloo",
    8,
    "a sum over all ranks",
    "export GLOO_SOCKET_IFNAME=INTERFACE      (from ip -br address: the one that reaches the other hosts)",
)
NCCL = ChainStep(
    "nccl",
    14,
    "a sum over all GPUs",
    "NCCL_DEBUG=INFO noether doctor      (then NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1)",
)
BANDWIDTH = ChainStep("bandwidth", 8, "sums that finish in seconds", "check the hosts' network links (ethtool, ibstat)")
CHAIN = ("store", "gloo", "nccl", "bandwidth")
MARGIN_SECONDS = 1.5
"""How long after the step's own time limit its answer may still arrive."""


@dataclass(frozen=True)
class World:
    """The ranks to connect: where they meet, and which have a GPU."""

    size: int
    point: MeetingPoint
    gpu_ranks: tuple[int, ...]
    hosts: tuple[str, ...]


def walk_chain(world: World, ask: Ask, clock: TimeBudget) -> list[Diagnosis]:
    """Runs the steps in order, as long as there is time, and stops at the first that fails."""
    everyone = {"point": asdict(world.point), "world": world.size, "gpu_ranks": list(world.gpu_ranks)}
    found: list[Diagnosis] = []

    def attempt(link: ChainStep, **more: Any) -> list[dict[str, Any]]:
        clock.step = link.name
        answers = ask({"do": link.name, **everyone, **more, "seconds": clock.left(link.seconds)})
        finding = _broken(link, answers, world)
        found.append(finding or Diagnosis(link.name, "ok", _works(link, answers, world)))
        return [] if finding else answers

    for link in (STORE, GLOO):
        if not attempt(link):
            return found + [skipped(name, f"{link.name} failed") for name in CHAIN[CHAIN.index(link.name) + 1 :]]
    if not world.gpu_ranks:
        found.append(skipped("nccl", "no rank has a CUDA device"))
    elif not attempt(NCCL):
        return [*found, skipped("bandwidth", "nccl failed")]
    backend = "nccl" if len(world.gpu_ranks) > 1 else "gloo"
    measured = [answer for answer in attempt(BANDWIDTH, backend=backend) if "mb_per_s" in answer]
    if measured:
        found[-1] = check_bandwidth(backend, measured, len(world.hosts))
    return found


def _works(link: ChainStep, answers: Sequence[dict[str, Any]], world: World) -> str:
    interfaces = sorted({answer["interface"] for answer in answers if answer.get("interface")})
    through = f", through {', '.join(interfaces)}" if interfaces else ""
    return {
        "store": f"{world.size} ranks write and read at {world.point.address}:{world.point.port}",
        "gloo": f"a sum over {world.size} ranks{through}",
        "nccl": f"a sum over {counted(len(world.gpu_ranks), 'GPU')}",
    }.get(link.name, "")


def _broken(link: ChainStep, answers: Sequence[dict[str, Any]], world: World) -> Diagnosis | None:
    by_error: dict[str, list[int]] = {}
    failed = [answer for answer in answers if "error" in answer]
    # What follows from a failure elsewhere, a time-out or a lost peer, comes after the others.
    for answer in sorted(failed, key=lambda answer: bool(answer.get("follows"))):
        by_error.setdefault(answer["error"], []).append(answer["rank"])
    answered = {answer["rank"] for answer in answers if "rank" in answer}
    lost = sorted(set(range(world.size)) - answered)
    if lost:
        by_error["stopped answering"] = lost
    if not by_error:
        return None
    said = [f"{named_ranks(ranks)}: {error}" for error, ranks in by_error.items()]
    ranks = tuple(sorted({rank for failed in by_error.values() for rank in failed}))
    return Diagnosis(link.name, "error", "; ".join(said[:4]), link.expected, link.fix, ranks=ranks)

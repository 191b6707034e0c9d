"""Checks that all ranks are present and that the hosts agree in versions, devices and time. Pure functions."""

from collections.abc import Mapping, Sequence
from typing import Any

from noether.common.numbers import counted
from noether.doctor.diagnosis import Diagnosis, Level
from noether.launch.processes.rank_state import named_ranks

CLOCK_SECONDS = 1.0
SLOW_MB_PER_S = {"gloo": 50.0, "nccl": 1000.0}
"""Chosen below what 1 Gb/s Ethernet (125 MB/s) and 10 Gb/s Ethernet (1250 MB/s) reach, allowing for overhead."""
MUST_AGREE = ("noether", "torch", "CUDA", "NCCL", "devices")
"""A run cannot work on hosts that differ in them: its link refuses another noether, torch or kind of device, and other
settings; another CUDA or NCCL, which the link does not compare, fails later."""


def check_presence(
    world_size: int, nodes: Sequence[str], came: Mapping[int, tuple[str, Sequence[int]]], seconds: float
) -> Diagnosis:
    """Checks that all ranks are present: `came` has host and ranks of those that did within `seconds`, by node rank."""
    here = sorted(rank for _, ranks in came.values() for rank in ranks)
    missing = sorted(set(range(world_size)) - set(here))
    if not missing:
        return Diagnosis("peers", "ok", f"all {world_size} ranks, on {', '.join(host for host, _ in came.values())}")
    absent = [name for index, name in enumerate(nodes) if index not in came]
    there = ", ".join(f"{named_ranks(ranks)} on {host}" for host, ranks in came.values())
    who = f"none from {', '.join(absent)}" if absent else "other ranks of their hosts did"
    seen = f"{named_ranks(missing)} did not connect within {seconds:.0f} s ({who}); {there} did"
    fix = "noether doctor"
    if absent:
        fix = f"noether doctor      (on {absent[0]} alone: check that it starts and can reach this host)"
    return Diagnosis("peers", "error", seen, f"{world_size} ranks", fix, ranks=tuple(missing))


def check_agreement(versions: Mapping[str, Mapping[str, str]]) -> Diagnosis:
    """Checks that all hosts have the same versions and devices; `versions` has those of each host, by name."""
    for name in dict.fromkeys((*MUST_AGREE, *(key for found in versions.values() for key in found))):
        by_value: dict[str, list[str]] = {}
        for host, found in versions.items():
            by_value.setdefault(found.get(name, "none"), []).append(host)
        if len(by_value) > 1:
            seen = "; ".join(f"{name} {value} on {', '.join(hosts)}" for value, hosts in by_value.items())
            level: Level = "error" if name in MUST_AGREE else "warning"
            expected = "one image or environment on every host"
            fix = "start every rank from one image, by its digest, or from one shared environment"
            if name == "devices":
                expected, fix = "the same kind on all", "accelerator=cpu      (or see launch, driver and devices)"
            return Diagnosis("agreement", level, seen, expected, fix)
    return Diagnosis("agreement", "ok", f"the same versions on {counted(len({*versions}), 'host')}")


def check_names(boots: Mapping[int, tuple[str, str]]) -> Diagnosis:
    """Checks that no two machines share a name: `boots` has, by node rank, the host's name and its kernel's boot id."""
    by_name: dict[str, dict[str, int]] = {}
    for node, (name, boot) in boots.items():
        by_name.setdefault(name, {})[boot] = node
    for name, machines in by_name.items():
        if len(machines) > 1:
            nodes = ", ".join(str(node) for node in machines.values())
            fix = "hostnamectl set-hostname NAME      (docker run --hostname NAME)"
            seen = f"nodes {nodes} are all called {name}"
            return Diagnosis("host names", "error", seen, "a different name for each machine", fix)
    names = counted(len(by_name), "host name")
    return Diagnosis("host names", "ok", f"{names}, each used by one machine")


def check_clocks(offsets: Mapping[str, tuple[float, float]]) -> Diagnosis:
    """Checks the hosts' clocks; `offsets`: how far each is ahead of rank 0's, and the doubt in that, in seconds."""
    off = {host: ahead for host, (ahead, doubt) in offsets.items() if abs(ahead) - doubt > CLOCK_SECONDS}
    if off:
        by = {host: f"{abs(ahead):.1f} s {'ahead' if ahead > 0 else 'behind'}" for host, ahead in off.items()}
        seen = ", ".join(f"{host} is {how}" for host, how in by.items())
        fix = "timedatectl set-ntp true      (or chronyc makestep, on the host)"
        wanted = f"within {CLOCK_SECONDS:g} s of rank 0's: file and log times are compared"
        return Diagnosis("clocks", "warning", seen, wanted, fix)
    worst = max((abs(ahead) for ahead, _ in offsets.values()), default=0.0)
    return Diagnosis("clocks", "ok", f"within {max(worst, 0.001):.3f} s of rank 0's")


def check_bandwidth(backend: str, measured: Sequence[Mapping[str, Any]], hosts: int) -> Diagnosis:
    """Checks the bandwidth measured by the slowest rank."""
    slowest = min(measured, key=lambda answer: answer["bus_mb_per_s"])
    seen = (
        f"{backend}: a sum of {slowest['large_bytes'] >> 20} MiB at {slowest['mb_per_s']:.0f} MB/s "
        f"(bus {slowest['bus_mb_per_s']:.0f} MB/s), a small one in "
        f"{max(answer['small_us'] for answer in measured):.0f} µs"
    )
    enough = SLOW_MB_PER_S[backend]
    if hosts > 1 and slowest["bus_mb_per_s"] < enough:
        fix = f"export {backend.upper()}_SOCKET_IFNAME=INTERFACE      (from ip -br address: the fast one)"
        return Diagnosis("bandwidth", "warning", seen, f"{enough:.0f} MB/s or more between hosts", fix)
    return Diagnosis("bandwidth", "ok", seen)

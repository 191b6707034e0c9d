"""Checks of the ranks together: whether all are present, have equal versions, and can communicate. Pure functions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from noether.common.numbers import counted
from noether.doctor.report import Diagnosis, Level, first_of_problems, skipped
from noether.launch.processes.context import named_ranks

SLOW_MB_PER_S = {"gloo": 50.0, "nccl": 1000.0}
"""{backend: the bandwidth below which it is slow}: less than that of 1 or 10 Gb/s Ethernet (125, 1250 MB/s)."""
MUST_AGREE = ("noether", "torch", "CUDA", "NCCL", "devices")
"""The values that must be equal on all hosts of a run. A run itself compares noether, torch, kind of device and
settings when it begins, but not CUDA and NCCL: if they differ, the run fails later."""
CHAIN = {
    "store": ("every rank can write to and read from rank 0's store", "master_port=PORT      (an open port)"),
    "gloo": (
        "a sum over all ranks",
        "export GLOO_SOCKET_IFNAME=INTERFACE      (from ip -br address: the one that reaches the other hosts)",
    ),
    "nccl": (
        "a sum over all GPUs",
        "NCCL_DEBUG=INFO noether doctor      (then NCCL_SOCKET_IFNAME, NCCL_IB_DISABLE=1 or NCCL_P2P_DISABLE=1)",
    ),
    "bandwidth": ("sums that finish in seconds", "check the hosts' network links (ethtool, ibstat)"),
}
"""{step between the ranks: (what should work, the fix if it does not work)}."""


def check_presence(
    world_size: int, nodes: Sequence[str], came: Mapping[int, tuple[str, Sequence[int]]], seconds: float
) -> Diagnosis:
    """Check that all ranks connected within `seconds`. `came`: {rank of a connected node: (its host, its ranks)}."""
    missing = set(range(world_size)).difference(*(ranks for _, ranks in came.values()))
    absent = [name for index, name in enumerate(nodes) if index not in came]
    there = ", ".join(f"{named_ranks(ranks)} on {host}" for host, ranks in came.values())
    who = f"none from {', '.join(absent)}" if absent else "other ranks of their hosts did"
    seen = f"{named_ranks(missing)} did not connect within {seconds:.0f} s ({who}); {there} did"
    alone = f"      (on {absent[0]} alone: check that it starts and can reach this host)" if absent else ""
    works = f"all {world_size} ranks, on {', '.join(host for host, _ in came.values())}"
    fix, wanted = f"noether doctor{alone}", f"{world_size} ranks"
    found = first_of_problems("peers", works, (missing, "error", seen, wanted, fix))
    return replace(found, ranks=tuple(sorted(missing)))


def check_agreement(versions: Mapping[str, Mapping[str, str]]) -> Diagnosis:
    """Check that all hosts have the same versions and devices. `versions`: {host: {name: version or device}}."""
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
    """Check that all machines have different names. `boots`: {node rank: (host name, boot id of its kernel)}."""
    by_name: dict[str, dict[str, int]] = {}
    for node, (name, boot) in boots.items():
        by_name.setdefault(name, {})[boot] = node
    shared = [(name, machines.values()) for name, machines in by_name.items() if len(machines) > 1]
    seen = "; ".join(f"nodes {', '.join(map(str, nodes))} are all called {name}" for name, nodes in shared)
    fix = "hostnamectl set-hostname NAME      (docker run --hostname NAME)"
    works, wanted = f"{counted(len(by_name), 'host name')}, each for one machine", "a different name for each machine"
    return first_of_problems("host names", works, (seen, "error", seen, wanted, fix))


def check_chain(told: Sequence[Mapping[str, Any]], world_size: int, where: str, hosts: int) -> list[Diagnosis]:
    """Check the steps of CHAIN in order, up to the first step that failed.

    `told` has an entry for each rank: its "rank" and "device", the result of each completed step by name, and the
    "error" that ended the rank, with "follows" as in `WorkerReport`. `where`: the address of the store.
    """
    found: list[Diagnosis] = []
    gpus = sum(rank["device"] == "cuda" for rank in told)
    interfaces = sorted({rank["gloo"]["interface"] for rank in told if rank.get("gloo", {}).get("interface")})
    works = {
        "store": f"{world_size} ranks write and read at {where}",
        "gloo": f"a sum over {world_size} ranks" + (f", through {', '.join(interfaces)}" if interfaces else ""),
        "nccl": f"a sum over {counted(gpus, 'GPU')}",
    }
    for name in CHAIN:
        if (broken := _broken(name, told, world_size)) is not None:
            later = list(CHAIN)[len(found) + 1 :]
            return [*found, broken, *(skipped(other, f"{name} failed") for other in later)]
        if name == "bandwidth":
            found.append(check_bandwidth([rank[name] for rank in told if rank[name]], hosts))
        elif name == "nccl" and not gpus:
            found.append(skipped(name, "no rank has a CUDA device"))
        else:
            found.append(Diagnosis(name, "ok", works[name]))
    return found


def _broken(name: str, told: Sequence[Mapping[str, Any]], world_size: int) -> Diagnosis | None:
    by_error: dict[str, list[int]] = {}
    # Errors that result from a failure in another rank (a timeout, a lost peer) come last.
    for rank in sorted((rank for rank in told if name not in rank), key=lambda rank: bool(rank["follows"])):
        by_error.setdefault(rank["error"], []).append(rank["rank"])
    if lost := sorted(set(range(world_size)) - {rank["rank"] for rank in told}):
        by_error["stopped answering"] = lost
    if not by_error:
        return None
    said = [f"{named_ranks(ranks)}: {error}" for error, ranks in by_error.items()]
    ranks = tuple(sorted(rank for failed in by_error.values() for rank in failed))
    return Diagnosis(name, "error", "; ".join(said[:4]), *CHAIN[name], ranks=ranks)


def check_bandwidth(measured: Sequence[Mapping[str, Any]], hosts: int) -> Diagnosis:
    """Check the lowest bandwidth of the ranks. `measured`: the result of each rank's step "bandwidth"."""
    slowest = min(measured, key=lambda answer: answer["bus_mb_per_s"])
    backend = slowest["backend"]
    seen = (
        f"{backend}: a sum of {slowest['large_bytes'] >> 20} MiB at {slowest['mb_per_s']:.0f} MB/s "
        f"(bus {slowest['bus_mb_per_s']:.0f} MB/s), a small one in "
        f"{max(answer['small_us'] for answer in measured):.0f} µs"
    )
    enough, is_slow = SLOW_MB_PER_S[backend], slowest["bus_mb_per_s"] < SLOW_MB_PER_S[backend]
    fix = f"export {backend.upper()}_SOCKET_IFNAME=INTERFACE      (from ip -br address: the fast one)"
    wanted = f"{enough:.0f} MB/s or more between hosts"
    return first_of_problems("bandwidth", seen, (hosts > 1 and is_slow, "warning", seen, wanted, fix))

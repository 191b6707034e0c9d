"""What the doctor says of hosts together, and of the chain between their ranks."""

from typing import Any

import pytest

from noether.doctor.chain import World, walk_chain
from noether.doctor.diagnosis import Diagnosis
from noether.doctor.own_host import TimeBudget
from noether.doctor.world_checks import (
    check_agreement,
    check_bandwidth,
    check_clocks,
    check_names,
    check_presence,
)
from noether.launch.processes.rank_state import MeetingPoint

SAME = {"noether": "1", "torch": "2.13", "python": "3.11", "devices": "cpu"}
FAST = {"large_bytes": 16 << 20, "mb_per_s": 1000.0, "bus_mb_per_s": 1000.0, "small_us": 90.0}
TWO_NODES = ("n1", "n2")

CASES: dict[str, tuple[Diagnosis, str, str]] = {
    "all-came": (
        check_presence(4, TWO_NODES, {0: ("n1", [0, 1]), 1: ("n2", [2, 3])}, 1),
        "ok",
        "all 4 ranks, on n1, n2",
    ),
    "a-node-is-missing": (
        check_presence(4, TWO_NODES, {0: ("n1", [0, 1])}, 18),
        "error",
        "ranks 2, 3 did not connect within 18 s (none from n2); ranks 0, 1 on n1 did",
    ),
    "one-rank-of-a-host-is-missing": (
        check_presence(2, ("n1",), {0: ("n1", [0])}, 18),
        "error",
        "rank 1 did not connect within 18 s (other ranks of their hosts did)",
    ),
    "alike": (check_agreement({"n1": SAME, "n2": SAME}), "ok", "same"),
    "another-torch": (check_agreement({"n1": SAME, "n2": SAME | {"torch": "2.12"}}), "error", "torch 2.12 on n2"),
    "other-devices": (check_agreement({"n1": SAME, "n2": SAME | {"devices": "cuda"}}), "error", "accelerator=cpu"),
    "another-python": (check_agreement({"n1": SAME, "n2": SAME | {"python": "3.12"}}), "warning", "python 3.12 on n2"),
    "another-image": (
        check_agreement({"n1": SAME | {"image": "sha256:aa"}, "n2": SAME | {"image": "sha256:bb"}}),
        "warning",
        "image sha256:aa on n1; image sha256:bb on n2",
    ),
    "an-image-on-one-host-only": (
        check_agreement({"n1": SAME | {"image": "sha256:aa"}, "n2": SAME}),
        "warning",
        "image none on n2",
    ),
    "torch-on-one-host-only": (check_agreement({"n1": SAME, "n2": {"noether": "1"}}), "error", "torch none on n2"),
    "two-machines-with-one-name": (check_names({0: ("node", "a"), 1: ("node", "b")}), "error", "nodes 0, 1"),
    "two-names-on-one-machine": (check_names({0: ("n1", "a"), 1: ("n2", "a")}), "ok", "2 host names"),
    "clocks-agree": (check_clocks({"n2": (0.02, 0.001)}), "ok", "0.020 s"),
    "a-clock-is-behind": (check_clocks({"n2": (-7.5, 0.001)}), "warning", "n2 is 7.5 s behind"),
    "a-doubtful-clock": (check_clocks({"n2": (1.5, 0.9)}), "ok", ""),
    "network-fast": (check_bandwidth("gloo", [FAST], 2), "ok", "bus 1000 MB/s"),
    "network-slow": (
        check_bandwidth("gloo", [FAST, FAST | {"bus_mb_per_s": 11.0}], 2),
        "warning",
        "export GLOO_SOCKET_IFNAME=INTERFACE",
    ),
    "slow-but-on-one-host": (check_bandwidth("gloo", [FAST | {"bus_mb_per_s": 11.0}], 1), "ok", "11 MB/s"),
}


@pytest.mark.parametrize(("finding", "level", "words"), CASES.values(), ids=CASES.keys())
def test_what_is_said(finding: Diagnosis, level: str, words: str) -> None:
    assert finding.level == level, finding
    assert words in f"{finding.seen} {finding.fix}"


def chain(
    broken: str, how: dict[int, str], gpus: tuple[int, ...] = (), silent: int = -1, late: tuple[int, ...] = ()
) -> dict[str, Diagnosis]:
    """Walks the chain with an `ask` that breaks one link on some ranks."""

    def ask(request: dict[str, Any]) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = []
        for rank in range(3):
            if request["do"] == broken and rank == silent:
                continue
            failed = request["do"] == broken and rank in how
            follows = "timed-out" if rank in late else ""
            answers.append({"rank": rank, **({"error": how[rank], "follows": follows} if failed else FAST)})
        return answers

    world = World(3, MeetingPoint("10.0.0.1", 20000, "", ""), gpus, TWO_NODES)
    found = walk_chain(world, ask, TimeBudget(3600))
    assert [finding.check for finding in found] == ["store", "gloo", "nccl", "bandwidth"]
    return {finding.check: finding for finding in found}


def test_a_whole_chain() -> None:
    assert {name: finding.level for name, finding in chain("", {}, (0, 1, 2)).items()} == dict.fromkeys(
        ("store", "gloo", "nccl", "bandwidth"), "ok"
    )
    assert chain("", {})["nccl"].seen == "no rank has a CUDA device"


@pytest.mark.parametrize("broken", ["store", "gloo", "nccl"])
def test_what_lies_behind_a_broken_link_is_skipped_with_the_reason(broken: str) -> None:
    found = chain(broken, {0: "no answer within 8 s", 2: "refused", 1: "no answer within 8 s"}, (0, 1, 2), late=(0, 1))
    assert found[broken].level == "error"
    # The cause before its echoes.
    assert found[broken].seen == "rank 2: refused; ranks 0, 1: no answer within 8 s"
    assert found["bandwidth"].seen == f"{broken} failed"
    assert found["bandwidth"].level == "skipped"


def test_a_rank_that_says_nothing_breaks_a_link() -> None:
    found = chain("gloo", {}, silent=1)
    assert found["gloo"].level == "error"
    assert found["gloo"].ranks == (1,)
    assert found["gloo"].seen == "rank 1: stopped answering"

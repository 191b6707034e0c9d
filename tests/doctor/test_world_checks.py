"""What the doctor says of hosts together, and of the chain between their ranks."""

import pytest

from noether.doctor.report import Diagnosis
from noether.doctor.world_checks import check_agreement, check_bandwidth, check_chain, check_names, check_presence

SAME = {"noether": "1", "torch": "2.13", "python": "3.11", "devices": "cpu"}
FAST = {"backend": "gloo", "large_bytes": 16 << 20, "mb_per_s": 1000.0, "bus_mb_per_s": 1000.0, "small_us": 90.0}
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
    "an-image-on-one-host-only": (
        check_agreement({"n1": SAME | {"image": "sha256:aa"}, "n2": SAME}),
        "warning",
        "image none on n2",
    ),
    "two-machines-with-one-name": (check_names({0: ("node", "a"), 1: ("node", "b")}), "error", "nodes 0, 1"),
    "two-names-on-one-machine": (check_names({0: ("n1", "a"), 1: ("n2", "a")}), "ok", "2 host names"),
    "network-fast": (check_bandwidth([FAST], 2), "ok", "bus 1000 MB/s"),
    "network-slow": (
        check_bandwidth([FAST, FAST | {"bus_mb_per_s": 11.0}], 2),
        "warning",
        "export GLOO_SOCKET_IFNAME=INTERFACE",
    ),
    "slow-but-on-one-host": (check_bandwidth([FAST | {"bus_mb_per_s": 11.0}], 1), "ok", "11 MB/s"),
}


@pytest.mark.parametrize(("finding", "level", "words"), CASES.values(), ids=CASES.keys())
def test_what_is_said(finding: Diagnosis, level: str, words: str) -> None:
    assert finding.level == level, finding
    assert words in f"{finding.seen} {finding.fix}"


STEPS = ("store", "gloo", "nccl", "bandwidth")


def chain(broken: str = "", how: dict[int, str] | None = None, gpus: int = 0, silent: int = -1) -> dict[str, Diagnosis]:
    """What is said of three ranks of which some break a step; those that say "no answer" were late."""
    told = []
    for rank in range(3):
        done = STEPS[: STEPS.index(broken)] if broken and rank in (how or {}) else STEPS
        error = (how or {}).get(rank, "")
        why = {"error": error, "follows": "timed-out" if error.startswith("no answer") else ""}
        steps = {step: FAST if step == "bandwidth" else {"interface": "eth0"} for step in done}
        if rank != silent:
            told.append({"rank": rank, "device": "cuda" if rank < gpus else "cpu", **why, **steps})
    found = check_chain(told, 3, "10.0.0.1:20000", 2)
    assert [finding.check for finding in found] == list(STEPS)
    return {finding.check: finding for finding in found}


def test_a_whole_chain() -> None:
    found = chain(gpus=3)
    assert {name: finding.level for name, finding in found.items()} == dict.fromkeys(STEPS, "ok")
    assert found["gloo"].seen == "a sum over 3 ranks, through eth0"
    assert chain()["nccl"].seen == "no rank has a CUDA device"


@pytest.mark.parametrize("broken", ["store", "gloo", "nccl"])
def test_what_lies_behind_a_broken_link_is_skipped_with_the_reason(broken: str) -> None:
    found = chain(broken, {0: "no answer within 8 s", 2: "refused", 1: "no answer within 8 s"}, 3)
    assert found[broken].level == "error"
    # The cause before its echoes.
    assert found[broken].seen == "rank 2: refused; ranks 0, 1: no answer within 8 s"
    assert found["bandwidth"].seen == f"{broken} failed"
    assert found["bandwidth"].level == "skipped"


def test_a_rank_that_says_nothing_breaks_a_link() -> None:
    found = chain(silent=1)["store"]
    assert (found.level, found.ranks, found.seen) == ("error", (1,), "rank 1: stopped answering")

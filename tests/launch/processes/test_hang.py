"""Who did not come, from where each rank stood."""

import pytest

from noether.config.distributed import DistributedConfig
from noether.launch.processes.context import WorkerReport
from noether.launch.processes.hang import name_missing, own_frames
from noether.launch.processes.rank_state import RankPosition

GRADIENTS = "all_reduce of the gradients"
WAITED = WorkerReport(0, "n1", "failed", "", position=RankPosition(7, GRADIENTS, 40), follows="timed-out", waited_s=5.0)


def doing(rank: int, position: RankPosition, stopped: bool = False) -> WorkerReport:
    return WorkerReport(rank, f"n{rank}", "stopped" if stopped else "busy", "in f (x.py:3)", position=position)


@pytest.mark.parametrize(
    ("others", "missing"),
    [
        pytest.param([doing(1, RankPosition(7, "", 39))], [1], id="in no collective"),
        pytest.param([doing(1, RankPosition(6, "barrier", 39))], [1], id="in the one before"),
        pytest.param([doing(1, RankPosition(7, GRADIENTS, 40))], [], id="waits as well"),
        pytest.param([doing(1, RankPosition(7, GRADIENTS, 40), stopped=True)], [1], id="stopped inside it"),
        pytest.param(
            [doing(1, RankPosition(7, GRADIENTS, 40)), doing(3, RankPosition())], [3], id="no answer from its host"
        ),
        pytest.param([doing(2, RankPosition(7, "", 39)), doing(1, RankPosition(7, "", 39))], [1, 2], id="two"),
    ],
)
def test_missing_ranks(others: list[WorkerReport], missing: list[int]) -> None:
    found = name_missing([WAITED], {entry.rank: entry for entry in others}, DistributedConfig(timeout_s=5))
    assert ([found.rank] if found else []) == missing[:1]
    if found is None:
        return
    first, second, *rest = found.message.splitlines()
    assert first.startswith("did not come to the all_reduce of the gradients of update 7")
    assert first.endswith("".join(f", nor did rank {rank}" for rank in missing[1:]))
    assert second == "  waited    rank 0, for 5 s (distributed.timeout_s)"
    assert rest == [f"  rank {rank}    in f (x.py:3)" for rank in missing]
    assert (found.kind, found.exit_code, found.host) == ("hung", 1, f"n{missing[0]}")


def test_the_first_timeout_is_the_one_for_joining() -> None:
    found = name_missing([WAITED], {1: doing(1, RankPosition())}, DistributedConfig(init_timeout_s=5))
    assert found is not None
    assert "for 5 s (distributed.init_timeout_s)" in found.message


def test_the_frames_are_the_ranks_own() -> None:
    stack = (
        'Thread 0x01 (most recent call first):\n  File "q.py", line 1 in _feed\n\n'
        'Current thread 0x02 (most recent call first):\n  File "a.py", line 2 in loss\n'
        '  File "worker.py", line 3 in call_target\n  File "cli.py", line 4 in main\n'
    )
    assert own_frames(stack) == 'Python stack, the innermost call first:\n  File "a.py", line 2 in loss'
    assert own_frames("") == ""

"""A signal at any moment sets a flag, and the ranks agree on the boundary at which they stop."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from learned import one_rank

from noether.common.errors import InterruptedStartError
from noether.common.processes import STOP_SIGNALS
from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.resolve import resolve_placement
from noether.launch.process_group.group import joined_group
from noether.launch.process_group.stop import SECOND_INTERRUPT_S, AgreedStop, StopAgreed
from noether.launch.processes.context import WorkerContext
from noether.launch.processes.run import run_placement


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_is_kept_until_the_next_boundary(number) -> None:
    """A second SIGTERM changes nothing, because Slurm sends two within 20 ms at a time limit."""
    stop = AgreedStop()
    with stop.listening():
        assert stop.agreed() == 0
        for _ in range(3 if number == signal.SIGTERM else 1):
            os.kill(os.getpid(), number)
            assert stop.agreed() == number


def test_a_second_ctrl_c_leaves_at_once() -> None:
    stop = AgreedStop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # A wrapper may forward the same Ctrl-C at once.
        assert stop.agreed() == signal.SIGINT
        time.sleep(SECOND_INTERRUPT_S)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_ends_a_rank_that_waits_for_others_at_the_start(number) -> None:
    with AgreedStop().listening(meets=True):
        with pytest.raises(InterruptedStartError, match=f"interrupted by {signal.Signals(number).name}") as caught:
            os.kill(os.getpid(), number)
        assert caught.value.exit_code == 128 + number
        os.kill(os.getpid(), signal.SIGTERM)  # A second SIGTERM, as Slurm sends, changes nothing.


def test_once_the_ranks_have_met_a_signal_is_kept() -> None:
    stop = AgreedStop()
    with stop.listening(meets=True):
        stop.join(one_rank())
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed() == signal.SIGTERM


def test_the_handlers_before_come_back() -> None:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    with AgreedStop().listening():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before


def pass_boundaries(context: WorkerContext, payload: tuple[str, dict[str, float | int]]) -> int:
    """Record the boundary at which each rank stopped, and why; rank 1 signals itself at boundary `signalled_at`.

    seconds: duration of an update. slower_rank_s: what rank 1 adds to this duration. checked: stop as inside an
    evaluation. apart: no collective keeps the ranks in step.
    """
    folder, plan = payload
    rank, boundary, reason = context.worker.rank, 0, 0
    stop = AgreedStop()
    with stop.listening(), joined_group(context) as group:
        stop.join(group)
        while not reason and boundary < 1000:
            boundary += 1
            time.sleep(plan["seconds"] + rank * plan.get("slower_rank_s", 0))
            if not plan.get("apart"):
                group.barrier()  # In a real run, the all-reduce of the gradients does this.
            if rank == 1 and boundary == plan["signalled_at"]:
                os.kill(os.getpid(), signal.SIGUSR1)
            try:
                if plan.get("checked"):
                    stop.check()
                else:
                    reason = stop.agreed()
            except StopAgreed as agreed:
                reason = agreed.reason
        stop.finish()
    (Path(folder) / f"rank-{rank}.json").write_text(json.dumps({"boundary": boundary, "reason": reason}))
    return 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plan", "latest"),
    [
        pytest.param({"seconds": 0.001, "signalled_at": 300}, 300 + 2, id="short updates"),
        pytest.param({"seconds": 0.25, "signalled_at": 6}, 6 + 2, id="long updates"),
        pytest.param({"seconds": 0.001, "slower_rank_s": 0.25, "signalled_at": 6}, 6 + 2, id="one slow rank"),
        pytest.param({"seconds": 0.001, "signalled_at": 300, "checked": 1}, 300 + 2, id="inside an evaluation"),
        pytest.param({"seconds": 0.001, "signalled_at": 300, "apart": 1}, 1000, id="ranks that are not kept in step"),
    ],
)
def test_two_ranks_stop_at_the_same_boundary(plan, latest, tmp_path: Path) -> None:
    placement = resolve_placement(LaunchRequest("cpu", "2"), {}, "testbox")
    code = run_placement(placement, "test_stop.pass_boundaries", (str(tmp_path), plan), tmp_path / "logs")
    assert code == 0
    ends = [json.loads((tmp_path / f"rank-{rank}.json").read_text()) for rank in range(2)]
    assert ends[0] == ends[1]
    assert ends[0]["reason"] == signal.SIGUSR1
    assert plan["signalled_at"] < ends[0]["boundary"] <= latest

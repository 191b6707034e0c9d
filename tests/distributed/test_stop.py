"""A signal at any moment becomes a flag, and the flag a stop that is agreed."""

import os
import signal
import time

import pytest

from noether.distributed.stop import SECOND_INTERRUPT_S, STOP_SIGNALS, AgreedStop


@pytest.mark.parametrize("number", STOP_SIGNALS, ids=lambda number: signal.Signals(number).name)
def test_a_signal_is_kept_until_the_next_boundary(number) -> None:
    stop = AgreedStop()
    with stop.listening():
        assert stop.agreed() == 0
        os.kill(os.getpid(), number)
        assert stop.agreed() == number
        assert stop.finish() == number


def test_a_second_sigterm_changes_nothing() -> None:
    """At a time limit Slurm sends SIGTERM twice within 20 ms."""
    stop = AgreedStop()
    with stop.listening():
        for _ in range(3):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.agreed() == signal.SIGTERM


def test_a_second_ctrl_c_leaves_at_once() -> None:
    stop = AgreedStop()
    with stop.listening():
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # Milliseconds later: a wrapper passing on the same key.
        assert stop.agreed() == signal.SIGINT
        time.sleep(SECOND_INTERRUPT_S)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_the_handlers_before_come_back() -> None:
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    with AgreedStop().listening():
        assert signal.getsignal(signal.SIGTERM) != before[signal.SIGTERM]
    assert {number: signal.getsignal(number) for number in STOP_SIGNALS} == before

"""The time by which a run must exit, the limit that sets this time, and how early the run begins to stop."""

import time

import pytest

from noether.launch.process_group.deadline import MARGIN_S, Deadline, find_deadline, seconds_left
from noether.launch.process_group.stop import TIME_LIMIT, AgreedStop, describe_stop

NOW = time.monotonic()
EPOCH = round(time.time())
JOB = {"SLURM_JOB_ID": "7"}

CASES = {
    "nobody-says": (None, None, {}, None, None),
    "the-setting": (30, None, {}, None, (NOW + 1800, "trainer.timeout_min=30")),
    "the-job": (None, None, {**JOB, "SLURM_JOB_END_TIME": str(EPOCH + 600)}, None, (NOW + 600, "SLURM_JOB_END_TIME")),
    "the-earlier-of-both": (5, None, {**JOB, "SLURM_JOB_END_TIME": str(EPOCH + 600)}, None, (NOW + 300, "trainer")),
    "an-end-inherited-from-a-job-that-is-over": (None, None, {**JOB, "SLURM_JOB_END_TIME": "99"}, None, None),
    "what-the-job-asked-for": (None, 60, JOB, None, (NOW + 3600, "slurm.timeout_min=60")),
    "not-in-a-job": (None, 60, {}, None, None),
    "squeue-knows-no-limit": (None, 60, JOB, "UNLIMITED", None),
}


@pytest.mark.parametrize(("timeout", "asked", "environ", "squeue", "expected"), CASES.values(), ids=CASES.keys())
def test_the_earliest_that_anything_says(timeout, asked, environ, squeue, expected) -> None:
    deadline = find_deadline(timeout, asked, environ, started=NOW, ask=lambda job: squeue)
    assert (deadline is None) == (expected is None)
    if expected is not None:
        assert deadline.moment == pytest.approx(expected[0], abs=2)
        assert expected[1] in deadline.describe()


def test_squeue_is_asked_where_the_environment_does_not_say() -> None:
    deadline = find_deadline(None, 60, JOB, started=time.monotonic(), ask=lambda job: "1:30")
    assert deadline is not None
    assert deadline.moment == pytest.approx(time.monotonic() + 90, abs=5)
    assert "squeue: 1:30 left to job 7" in deadline.source


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0:59", 59), ("59:00", 3540), ("1:00:01", 3601), ("2-03:00:00", 183600), ("UNLIMITED", None), ("INVALID", None)],
)
def test_squeue_s_times(text, seconds) -> None:
    assert seconds_left(text) == seconds


def test_the_lead_follows_what_was_measured() -> None:
    deadline = Deadline(NOW, "test")
    assert deadline.lead_s == MARGIN_S
    deadline.save_s = 20.0
    assert not deadline.is_near(lambda: NOW - 60)
    assert not deadline.is_near(lambda: NOW - 57)  # The boundaries so far are 3 s apart.
    assert deadline.lead_s == MARGIN_S + 40 + 6
    assert deadline.is_near(lambda: NOW - 56)


def test_a_clock_that_is_set_moves_no_deadline(monkeypatch) -> None:
    deadline = find_deadline(30, None, {}, started=time.monotonic())
    monkeypatch.setattr(time, "time", lambda: EPOCH + 86400.0)
    assert deadline is not None
    assert not deadline.is_near()


def test_a_deadline_stops_like_a_signal() -> None:
    stop = AgreedStop()
    stop.deadline = Deadline(time.monotonic() + 3600, "test")
    assert stop.agreed() == 0
    stop.deadline = Deadline(time.monotonic() + MARGIN_S / 2, "test")
    assert stop.agreed() == TIME_LIMIT
    assert describe_stop(TIME_LIMIT) == "the time limit"

"""The parts of a run's time: no part is missing or counted twice, and the slowest rank is named."""

import gzip
import json
import time

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from noether.launch.process_group.torch_internals import LightFlopCounter
from noether.runs.records import read_metrics
from noether.training.time_use import COMPUTING, NAMES, Clock, Part, TimeTable, divided


def test_the_clock_runs_for_exactly_one_part_at_a_time() -> None:
    before = time.perf_counter()
    clock = Clock(torch.device("cpu"))
    began = time.perf_counter()
    for part in (Part.DATA, Part.FORWARD, Part.DATA):
        clock.switch(part)
        time.sleep(0.01)
    ended = time.perf_counter()
    seconds = clock.take()
    taken = time.perf_counter()
    assert ended - began <= sum(seconds) + 1e-6
    assert sum(seconds) <= taken - before + 1e-6
    assert seconds[Part.DATA] >= 0.02
    assert seconds[Part.FORWARD] >= 0.01
    assert sum(clock.take()) <= time.perf_counter() - ended + 1e-6


def test_on_a_gpu_the_host_s_time_is_divided_as_the_device_s_events_say() -> None:
    host = [0.0] * len(Part)
    host[Part.DATA], host[Part.FORWARD], host[Part.OPTIMIZER] = 1.0, 0.5, 3.5
    device = [0.0] * len(Part)
    device[Part.FORWARD], device[Part.BACKWARD] = 10.0, 30.0
    seconds = divided(host, device)
    assert [seconds[part] for part in COMPUTING] == [1.0, 3.0, 0.0, 0.0]
    assert sum(seconds) == sum(host)
    assert divided(host, [0.0] * len(Part)) == host


class BusyDevice:
    """A GPU that is behind the host: its events are passed only when the host waits for them."""

    def __init__(self) -> None:
        self.queued_ms = self.passed_ms = 0.0

    def event(self, *, enable_timing: bool) -> "DeviceEvent":
        assert enable_timing
        return DeviceEvent(self)


class DeviceEvent:
    """Like torch.cuda.Event, raises an error if a time is read before the device has passed both events."""

    def __init__(self, device: BusyDevice) -> None:
        self.device = device

    def record(self) -> None:
        self.at = self.device.queued_ms

    def synchronize(self) -> None:
        self.device.passed_ms = max(self.device.passed_ms, self.at)

    def elapsed_time(self, end: "DeviceEvent") -> float:
        if max(self.at, end.at) > self.device.passed_ms:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return end.at - self.at


@pytest.mark.parametrize("updates", [1, 3])
def test_a_busy_gpu_is_not_asked_for_a_time_that_it_has_not_measured(updates, monkeypatch) -> None:
    device = BusyDevice()
    monkeypatch.setattr(torch.cuda, "Event", device.event)
    clock = Clock(torch.device("cuda"))
    for _ in range(2):
        for _ in range(updates):
            for part, queued_ms in ((Part.FORWARD, 10.0), (Part.BACKWARD, 30.0), (Part.OPTIMIZER, 20.0)):
                clock.switch(part)
                device.queued_ms += queued_ms
            clock.switch(Part.OTHER)
        clock.switch(Part.REDUCTION)
        device.passed_ms = device.queued_ms  # Reading the loss waits for the device.
        device.queued_ms += 5.0  # Work of another process comes first.
        seconds = clock.take()
        clock.switch(Part.LOGGING)
        assert seconds[Part.BACKWARD] == pytest.approx(3 * seconds[Part.FORWARD])
        assert seconds[Part.OPTIMIZER] == pytest.approx(2 * seconds[Part.FORWARD])
        assert seconds[Part.REDUCTION] == 0
    clock.switch(Part.FORWARD)
    device.queued_ms += 10.0
    clock.switch(Part.OTHER)
    assert clock.take()[Part.FORWARD] > 0, "the last times must include queued work of the device"


def test_the_slowest_rank_has_most_work_and_not_most_waiting() -> None:
    ranks, work = np.zeros((3, len(Part))), np.array([1.0, 2.0, 1.0])
    ranks[:, Part.BACKWARD], ranks[:, Part.REDUCTION] = work, 3.0 - work
    slowest = TimeTable(ranks, ["n1", "n2", "n3"]).slowest()
    assert slowest == {"rank": 1, "host": "n2", "behind": pytest.approx(1 / 3, abs=1e-3)}
    assert TimeTable(ranks[:1], ["n1"]).slowest() is None


def test_operations_are_counted_as_torchs_own_counter_counts_them() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution, self.linear = nn.Conv1d(3, 8, 3, padding=1), nn.Linear(8, 16)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.linear(self.convolution(x).mT)
            heads = x.unflatten(-1, (2, 8)).transpose(1, 2)
            return nn.functional.scaled_dot_product_attention(heads, heads, heads)

    model, x = Net(), torch.randn(4, 3, 10)
    with FlopCounterMode(display=False) as theirs:
        model(x).square().sum().backward()
    with LightFlopCounter() as ours:
        model(x).square().sum().backward()
    assert ours.flops == theirs.get_total_flops() > 0


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_parts_of_a_run_are_its_wall_time(ranks, train) -> None:
    folder = train("timed", f"devices={ranks}", "trainer.max_updates=24", "num_workers=1", "trainer.profile=4 updates")
    result = json.loads(folder.result.read_text())
    whole, rows = result["time_use"], read_metrics(folder.metrics)
    assert tuple(whole["parts"]) == NAMES
    for rank in whole["ranks"]:
        assert 0.97 < sum(rank.values()) / whole["seconds"] < 1.03
    training = [row for row in rows if row["kind"] == "training"]
    # The rows have all of the run's time except that after the last row.
    covered = sum(sum(row["time_use"].values()) for row in training) / whole["seconds"]
    assert 0.3 < covered <= 1.03
    for part in ("data", "forward", "backward", "optimizer", "evaluation", "checkpoint"):
        assert whole["parts"][part] > 0, part
    assert (whole["slowest"] is None) == (ranks == 1)
    assert ranks == 1 or whole["parts"]["reduction"] > 0.001
    assert result["arithmetic"]["flops_per_sample"] > 1e5
    assert 0 < result["arithmetic"]["share"] < 1
    for rank in range(ranks):
        trace = json.loads(gzip.decompress((folder.path / f"profile/trace-rank-{rank}.json.gz").read_bytes()))
        names = [event.get("name", "") for event in trace["traceEvents"]]
        assert any("addmm" in name or "linear" in name for name in names)
        assert names.count("aten::_fused_adamw_") == 4 * 2  # Two groups: weights with and without decay.
    if ranks == 1:  # An attempt that only repeats the evaluation keeps the times of training.
        folder.result.unlink()
        train("timed", "devices=2", "trainer.max_updates=24", "trainer.profile=null", "resume=auto")
        again = json.loads(folder.result.read_text())
        assert (again["time_use"], again["arithmetic"]["share"] > 0) == (whole, True)
        assert [row["kind"] for row in read_metrics(folder.metrics)].count("time_use") == 1

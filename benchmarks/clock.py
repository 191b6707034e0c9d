"""Measure the cost of the clock that splits a run's time into parts, as a share of a tiny model's update.

    python benchmarks/clock.py [--rounds N] [--json FILE]

The share is the number of the clock's calls in an update, times the duration of a call (averaged over a hundred
thousand calls), divided by the duration of the update (30,000 parameters, 20 samples: about a millisecond). It is
smaller for a larger model.
"""

import tempfile
import time
from pathlib import Path
from typing import Any

import loop
import torch
from record import finish, parser, row, told

from noether.training.time_use import Clock, Part

CALLS = 100_000
UPDATES = 200


def cost_of_a_call() -> float:
    clock = Clock(torch.device("cpu"))
    began = time.process_time()
    for _ in range(CALLS):
        clock.switch(Part.FORWARD)
    return (time.process_time() - began) / CALLS


def main() -> None:
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    tempfile.tempdir = str(Path(tempfile.mkdtemp(prefix="clock-bench-")))
    switch, calls = Clock.switch, [0]

    def counted(self: Clock, part: Part) -> None:
        calls[0] += 1
        switch(self, part)

    prepare = loop.noether_arm(None)
    prepare(2)()

    def timed(with_calls: Any) -> float:
        turn = prepare(UPDATES)
        Clock.switch = with_calls  # type: ignore[method-assign]
        try:
            began = time.process_time()
            turn()
            return (time.process_time() - began) / UPDATES
        finally:
            Clock.switch = switch  # type: ignore[method-assign]

    timed(counted)
    a_turn = calls[0] / UPDATES
    rounds = options.rounds or 9
    found = [(cost_of_a_call(), timed(switch)) for _ in range(rounds)]
    shares = [a_turn * cost / update for cost, update in found]
    rows = [
        row("cost of the clock as a share of a tiny update, from its calls", shares, 0.005, at_least=False),
        row("calls an update", [a_turn]),
        row("microseconds a call", [1e6 * cost for cost, _ in found]),
    ]
    finish("clock", rows, options.json)


if __name__ == "__main__":
    told(main)

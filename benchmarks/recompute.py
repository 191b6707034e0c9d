"""Measure the memory that `trainer.recompute` saves in an update, and the time that it costs.

    python benchmarks/recompute.py [MODEL ...] [--points N] [--rounds N] [--json FILE]

Models have their published sizes and train on one sample with `--points` points of each kind. Per model, two processes
take turns. Time is CPU time on one thread; memory is a process's peak above its use before the first update.
"""

import itertools
import os
import sys

import model_time
import torch
from record import Arm, at_least_one, finish, parser, row, serve, told

from noether.core.models.build import recompute_blocks
from noether.launch.processes.worker import keep_freed_memory
from noether.training.update import Updater


def arm_of(kind: str, model: str, points: int) -> None:
    """Run a variant: `with` or `without` recomputation."""
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    keep_freed_memory()
    run, config, batches = model_time.prepared(model, "published", points)
    if kind == "with":
        recompute_blocks(run.state.model)
    updater = Updater(run.state, model_time.one_rank(), config.trainer, run.precision, 1)
    turns = itertools.cycle(batches)

    def update(count: int) -> None:
        for _ in range(count):
            updater.update([next(turns)], 1e-4)

    serve(lambda count: lambda: update(count))


def main() -> None:
    own = parser(__doc__)
    own.add_argument("models", nargs="*", metavar="MODEL")
    own.add_argument("--points", type=at_least_one, default=model_time.QUARTER)
    options = own.parse_args()
    rows = []
    for model in options.models or model_time.MODELS:
        arms = {kind: Arm("recompute.py", kind, model, str(options.points)) for kind in ("without", "with")}
        try:
            for arm in arms.values():
                arm.answer()
            answers = [{kind: arm.ask(1) for kind, arm in arms.items()} for _ in range(options.rounds or 3)]
        finally:
            for arm in arms.values():
                arm.close()
        name = model_time.MODELS[model]
        for what, key in (("time", "cpu_ms"), ("memory", "memory_mib")):
            ratios = [one["with"][key] / one["without"][key] for one in answers]
            rows.append(row(f"{name}, published: {what} of an update, recomputed / kept", ratios))
    finish("recompute", rows, options.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--arm"]:
        arm_of(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        told(main)

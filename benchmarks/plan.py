"""Measure the extra time of `noether plan` in a Slurm step of 65,536 ranks over a step of two.

    python benchmarks/plan.py [--ranks N] [--rounds N] [--json FILE]

The plan is made only from the variables that Slurm sets on a cluster's first node, with 8 tasks per node and a node
list like node[00001-08192]. The two steps take turns. Times are CPU seconds of the whole command.
"""

import os

from record import REPOSITORY, at_least_one, cpu_seconds, finish, parser, row, told

GOAL_S = 1.0
TASKS = 8


def environment(ranks: int) -> dict[str, str]:
    """Return this environment, with the variables that Slurm sets for rank 0 of a step."""
    tasks = min(TASKS, ranks)
    nodes = ranks // tasks
    names = f"node[{1:05d}-{nodes:05d}]" if nodes > 1 else "node00001"
    counts = f"{tasks}(x{nodes})" if nodes > 1 else str(tasks)
    said = {
        "SLURM_JOB_ID": "1", "SLURM_JOBID": "1", "SLURM_STEP_ID": "0", "SLURM_STEPID": "0", "SLURM_NODEID": "0",
        "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURMD_NODENAME": "node00001",
        "SLURM_JOB_NODELIST": names, "SLURM_NODELIST": names, "SLURM_STEP_NODELIST": names,
        "SLURM_NTASKS": str(ranks), "SLURM_NPROCS": str(ranks), "SLURM_STEP_NUM_TASKS": str(ranks),
        "SLURM_NNODES": str(nodes), "SLURM_JOB_NUM_NODES": str(nodes), "SLURM_STEP_NUM_NODES": str(nodes),
        "SLURM_TASKS_PER_NODE": counts, "SLURM_STEP_TASKS_PER_NODE": counts, "SLURM_CPUS_PER_TASK": "1",
        "SLURM_CPUS_ON_NODE": str(tasks), "SLURM_JOB_CPUS_PER_NODE": counts,
    }  # fmt: skip
    return {**{key: value for key, value in os.environ.items() if not key.startswith("SLURM")}, **said}


def seconds(ranks: int) -> float:
    """Return the CPU seconds of `noether plan` in a step with `ranks` ranks."""
    settings = [f"trainer.effective_batch_size={ranks}", "dataset.train_shapes=600000", "accelerator=cpu"]
    return cpu_seconds(["plan", "--json", *settings], environment(ranks), REPOSITORY)


def main() -> None:
    own = parser(__doc__)
    own.add_argument("--ranks", type=at_least_one, default=65_536)
    options = own.parse_args()
    pairs = [(seconds(2), seconds(options.ranks)) for _ in range(options.rounds or 3)]
    rows = [
        row(
            f"plan at {options.ranks:,} ranks: seconds above one of 2",
            [many - few for few, many in pairs],
            GOAL_S,
            at_least=False,
        ),
        row("plan at 2 ranks: seconds in all", [few for few, _ in pairs]),
    ]
    finish("plan", rows, options.json)


if __name__ == "__main__":
    told(main)

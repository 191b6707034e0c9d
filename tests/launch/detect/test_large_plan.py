"""`noether plan` on a whole machine: 8192 ranks on 1024 nodes, planned from one task's environment."""

import json
import os
import subprocess
import sys

import pytest
from processes import run_to_end

NODES, EACH = 1024, 8
NAMES = [f"rack{rack:02d}-node{node:03d}" for rack in range(16) for node in range(64)]


def task(rank: int) -> dict[str, str]:
    """One task of `srun -N1024 --ntasks-per-node=8`, or of one task a node with eight devices."""
    node, local = divmod(rank, EACH)
    nodes, counts, tasks = "rack[00-15]-node[000-063]", f"{EACH}(x{NODES})", str(NODES * EACH)
    of_job = {"JOB_ID": "4000000", "JOB_NODELIST": nodes, "JOB_NUM_NODES": str(NODES), "NTASKS": tasks}
    of_step = {"STEP_ID": "0", "STEP_NODELIST": nodes, "STEP_NUM_TASKS": tasks, "STEP_TASKS_PER_NODE": counts}
    of_task = {"PROCID": str(rank), "LOCALID": str(local), "NODEID": str(node), "TASKS_PER_NODE": counts}
    return {f"SLURM_{name}": value for name, value in {**of_job, **of_step, **of_task}.items()}


def plan_as(rank: int, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "CUDA_"))}
    return run_to_end([sys.executable, "-m", "noether", "plan", "--json", *words], {**environ, **task(rank)})


@pytest.mark.parametrize("visible", ["0,1,2,3,4,5,6,7", None], ids=["eight GPUs a node", "CPUs"])
def test_8192_ranks_on_1024_nodes(visible: str | None) -> None:
    rank = 5003
    words = ["trainer.effective_batch_size=16384", f"--visible-devices={visible}" if visible else "accelerator=cpu"]
    result = plan_as(rank, *words)  # benchmarks/plan.py measures how long it takes.
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["launcher"], plan["world_size"], plan["node_rank"]) == ("slurm", 8192, 625)
    assert plan["nodes"] == NAMES
    # The plan lists those that this process answers for, and not all 8192.
    device = "cuda:3" if visible else "cpu"
    assert plan["workers"] == [{"rank": 5003, "local_rank": 3, "node_rank": 625, "device": device}]
    assert plan["endpoint"] == {"host": "rack00-node000", "port": 20000 + 101 * 4_000_000 % 9497}
    assert plan["batch"]["per_rank"] == 2
    assert len(plan["reasons"]["nodes"]) < 200

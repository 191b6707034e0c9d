"""In made-up Slurm steps of any shape, all tasks agree on the world, and each task finds its own ranks."""

import json
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placing import block, check_one_world, cyclic, het_step, own_het_step, place, step
from processes import run_to_end

from noether.launch.detect.endpoint import derived
from noether.launch.detect.placement import Endpoint, LaunchRequest

COUNTS = st.lists(st.integers(1, 4), min_size=1, max_size=6)
NAMES = st.sampled_from(["n{}", "rack{}node7", "gpu-{:03d}-ib", "n{}.lan"])


@given(COUNTS, st.data(), NAMES, st.integers(1, 10**7), st.integers(0, 400))
def test_any_distribution_on_cpus(counts: list[int], data: st.DataObject, name: str, job: int, step_id: int) -> None:
    rest = data.draw(st.permutations(block(counts)))
    rest.remove(0)
    where = data.draw(st.sampled_from([block(counts), cyclic(counts), [0, *rest]]))
    names = [name.format(number) for number in range(9, 9 + len(counts))]
    environs = step(counts, where, names=names, job=job, step_id=step_id)
    placements = [place(environ) for environ in environs]
    check_one_world(placements)
    for rank, placement in enumerate(placements):
        assert placement.launcher == "slurm"
        assert placement.world_size == sum(counts)
        assert placement.nodes == tuple(names)
        assert (placement.workers[0].rank, placement.node_rank) == (rank, where[rank])
        if len(where) > 1:
            assert placement.endpoint.port == derived(job, step_id, "")[0]


@given(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans())
def test_one_task_a_device(nodes: int, tasks: int, own: bool, by_cycle: bool) -> None:
    counts = [tasks] * nodes
    devices = [str(local) for local in range(tasks)] if own else [",".join(map(str, range(tasks)))]
    environs = step(counts, cyclic(counts) if by_cycle else None, devices=devices, SLURM_GPUS_ON_NODE=str(tasks))
    placements = [place(environ) for environ in environs]
    check_one_world(placements)
    for placement in placements:
        (worker,) = placement.workers
        assert worker.device.name == str(worker.local_rank)
        assert worker.device.index == (0 if own else worker.local_rank)
        assert bool(placement.warnings) == (own and tasks > 1)


@given(st.integers(1, 5), st.integers(1, 4))
def test_one_task_a_node_with_several_devices(nodes: int, devices: int) -> None:
    environs = step([1] * nodes, devices=[",".join(map(str, range(devices)))])
    placements = [place(environ) for environ in environs]
    check_one_world(placements)
    for node, placement in enumerate(placements):
        assert placement.world_size == nodes * devices
        assert [worker.rank for worker in placement.workers] == list(range(node * devices, (node + 1) * devices))
        assert [worker.device.index for worker in placement.workers] == list(range(devices))


@given(COUNTS, st.integers(1, 2), st.booleans())
def test_several_cpu_workers_a_task(counts: list[int], workers: int, by_cycle: bool) -> None:
    environs = step(counts, cyclic(counts) if by_cycle else None)
    placements = [place(environ, LaunchRequest("cpu", str(workers))) for environ in environs]
    check_one_world(placements)
    assert placements[0].world_size == sum(counts) * workers


def test_a_heterogeneous_step_sums_over_its_nodes() -> None:
    placements = [place(environ) for environ in het_step(["a100:4", "2"])]
    check_one_world(placements)
    assert [[worker.rank for worker in placement.workers] for placement in placements] == [[0, 1, 2, 3], [4, 5], [6, 7]]


def test_devices_of_the_setting_are_as_many_on_every_node_of_a_heterogeneous_step() -> None:
    for environs in (het_step(["4", "2"]), own_het_step(["4", "2"])):
        placements = [place(environ, LaunchRequest(devices="2")) for environ in environs]
        check_one_world(placements)
        assert [[worker.rank for worker in placement.workers] for placement in placements] == [[0, 1], [2, 3], [4, 5]]


def test_fault_1_a_mask_is_counted_within() -> None:
    # GPUs are counted within the mask: with CUDA_VISIBLE_DEVICES=0,1, child processes would use another job's GPUs.
    for mask in ("2,3", "GPU-2,GPU-3"):
        placements = [place(environ) for environ in step([2, 2], devices=[mask])]
        check_one_world(placements)
        assert [str(p.workers[0].device) for p in placements] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
        assert [p.workers[0].device.name for p in placements] == mask.split(",") * 2
        (hybrid,) = (place(environ) for environ in step([1], devices=[mask]))
        assert [str(w.device) for w in hybrid.workers] == ["cuda:0", "cuda:1"]
        assert [w.device.name for w in hybrid.workers] == mask.split(",")


def test_fault_9_the_port_is_the_steps_own() -> None:
    # Another program could take a random port before it is used; two steps would share a port derived from the job id.
    steps = [(job, number) for job in (13, 14, 105) for number in range(3)]
    ports = {one: place(step([1, 1], job=one[0], step_id=one[1])[0]).endpoint.port for one in steps}
    assert len(set(ports.values())) == len(ports)
    assert all(place(environ).endpoint.port == ports[14, 2] for environ in step([2, 1], job=14, step_id=2))
    # A process that starts every rank itself can bind any free port.
    assert place(step([1], devices=["0,1"])[0]).endpoint == Endpoint("127.0.0.1", 0)


@given(st.integers(1, 10**8), st.integers(-92, 92), st.integers(0, 100), st.integers(0, 100))
def test_near_jobs_and_steps_never_share_a_port(job: int, apart: int, first: int, second: int) -> None:
    one, other = derived(job, first, "")[0], derived(job + abs(apart), second, "")[0]
    assert 20000 <= one < 29500
    assert (one == other) == (apart == 0 and first == second)


NODES, EACH = 1024, 8
NAMES = [f"rack{rack:02d}-node{node:03d}" for rack in range(16) for node in range(64)]


def large_task(rank: int) -> dict[str, str]:
    """Return the variables of one task of `srun -N1024 --ntasks-per-node=8`."""
    node, local = divmod(rank, EACH)
    nodes, counts, tasks = "rack[00-15]-node[000-063]", f"{EACH}(x{NODES})", str(NODES * EACH)
    of_job = {"JOB_ID": "4000000", "JOB_NODELIST": nodes, "JOB_NUM_NODES": str(NODES), "NTASKS": tasks}
    of_step = {"STEP_ID": "0", "STEP_NODELIST": nodes, "STEP_NUM_TASKS": tasks, "STEP_TASKS_PER_NODE": counts}
    of_task = {"PROCID": str(rank), "LOCALID": str(local), "NODEID": str(node), "TASKS_PER_NODE": counts}
    return {f"SLURM_{name}": value for name, value in {**of_job, **of_step, **of_task}.items()}


def plan_as(rank: int, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "CUDA_"))}
    return run_to_end([sys.executable, "-m", "noether", "plan", "--json", *words], {**environ, **large_task(rank)})


@pytest.mark.parametrize("visible", ["0,1,2,3,4,5,6,7", None], ids=["eight GPUs a node", "CPUs"])
def test_8192_ranks_on_1024_nodes(visible: str | None) -> None:
    rank = 5003
    words = ["trainer.effective_batch_size=16384", f"--visible-devices={visible}" if visible else "accelerator=cpu"]
    result = plan_as(rank, *words)  # benchmarks/plan.py measures how long this takes.
    assert result.returncode == 0, result.stderr
    plan = json.loads(result.stdout)
    assert (plan["launcher"], plan["world_size"], plan["node_rank"]) == ("slurm", 8192, 625)
    assert plan["nodes"] == NAMES
    # The plan lists only this process's workers, not all 8192.
    device = "cuda:3" if visible else "cpu"
    assert plan["workers"] == [{"rank": 5003, "local_rank": 3, "node_rank": 625, "device": device}]
    assert plan["endpoint"] == {"host": "rack00-node000", "port": 20000 + 101 * 4_000_000 % 9497}
    assert plan["batch"]["per_rank"] == 2
    assert len(plan["reasons"]["nodes"]) < 200

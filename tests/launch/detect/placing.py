"""Resolve the placement of a process in a made-up environment; make up environments of Slurm steps."""

from collections.abc import Sequence

from noether.launch.detect.devices import GpuDriver
from noether.launch.detect.driver import Gpu
from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from noether.launch.detect.resolve import resolve_placement


def four_gpus() -> list[Gpu]:
    """Return the GPUs as the driver of a node with four reports them."""
    return [Gpu(index, f"GPU-{index}") for index in range(4)]


def no_gpus() -> None:
    """Return None, as the driver query does on a node without a driver."""


def driver_of(environ: dict[str, str]) -> GpuDriver:
    """Return a driver with the GPUs that Slurm's mask lists; without a mask, a driver without GPUs."""
    return four_gpus if "CUDA_VISIBLE_DEVICES" in environ else no_gpus


def place(
    environ: dict[str, str],
    request: LaunchRequest | None = None,
    gpus: bool | None = None,
    host: str = "",
    facts: ProcessFacts = NOTHING_KNOWN,
) -> Placement:
    """Resolve the placement as `noether train` would. `gpus`: whether the host has four GPUs; None: as masked."""
    driver = driver_of(environ) if gpus is None else four_gpus if gpus else no_gpus
    return resolve_placement(
        request or LaunchRequest(), environ, host or environ.get("SLURMD_NODENAME", "box"), driver, facts
    )


def shown(placement: Placement) -> str:
    """Return each worker of a placement as "rank/local rank/node rank device"."""
    return " ".join(f"{w.rank}/{w.local_rank}/{w.node_rank} {w.device}" for w in placement.workers)


def block(counts: Sequence[int]) -> list[int]:
    """Return the node of each rank, filling one node after the other."""
    return [node for node, count in enumerate(counts) for _ in range(count)]


def cyclic(counts: Sequence[int]) -> list[int]:
    """Return the node of each rank, giving each node one rank in turn."""
    return [node for turn in range(max(counts)) for node, count in enumerate(counts) if count > turn]


def job_variables(names: Sequence[str], counts: Sequence[int], job: int = 13) -> dict[str, str]:
    """Return the variables that sbatch sets for a job's batch script, and that srun sets again for a step."""
    return {
        "SLURM_JOB_ID": str(job),
        "SLURM_JOB_NODELIST": ",".join(names),
        "SLURM_JOB_NUM_NODES": str(len(names)),
        "SLURM_NTASKS": str(sum(counts)),
        "SLURM_TASKS_PER_NODE": ",".join(map(str, counts)),
    }


def batch_script(names: Sequence[str], counts: Sequence[int], job: int = 13) -> dict[str, str]:
    """Return the environment of a bare command in a batch script."""
    first = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_GTIDS": "0"}
    return {**job_variables(names, counts, job), **first, "SLURMD_NODENAME": names[0]}


def step(
    counts: Sequence[int],
    nodes_of_ranks: Sequence[int] | None = None,
    *,
    names: Sequence[str] = (),
    job: int = 13,
    step_id: int = 0,
    devices: Sequence[str] | None = None,
    **extra: str,
) -> list[dict[str, str]]:
    """Return the environment of each task of a step, by rank. `counts`: tasks per node; `extra`: variables for all.

    nodes_of_ranks: the node of each rank; None: block distribution. devices: CUDA_VISIBLE_DEVICES by local rank, or
    one item for all.
    """
    names = names or [f"n{number}" for number in range(1, len(counts) + 1)]
    where = block(counts) if nodes_of_ranks is None else list(nodes_of_ranks)
    environs = []
    for rank, node in enumerate(where):
        local = where[:rank].count(node)
        environ = {
            **job_variables(names, counts, job),
            "SLURM_STEP_ID": str(step_id),
            "SLURM_STEP_NODELIST": ",".join(names),
            "SLURM_STEP_NUM_TASKS": str(len(where)),
            "SLURM_STEP_TASKS_PER_NODE": ",".join(map(str, counts)),
            "SLURM_PROCID": str(rank),
            "SLURM_LOCALID": str(local),
            "SLURM_NODEID": str(node),
            "SLURMD_NODENAME": names[node],
            "SLURM_GTIDS": ",".join(str(other) for other, there in enumerate(where) if there == node),
            **extra,
        }
        if devices is not None:
            environ["CUDA_VISIBLE_DEVICES"] = devices[local % len(devices)]
        environs.append(environ)
    return environs


def het_step(gpus: list[str], **extra: str) -> list[dict[str, str]]:
    """Return the environments of a task on n1 (component 0), n2 and n3 (1); `gpus`: GPUs per node by component."""
    het = {
        "SLURM_HET_SIZE": "2",
        "SLURM_JOB_NODELIST_HET_GROUP_0": "n1",
        "SLURM_JOB_NODELIST_HET_GROUP_1": "n[2-3]",
        "SLURM_GPUS_PER_NODE_HET_GROUP_0": gpus[0],
        "SLURM_GPUS_PER_NODE_HET_GROUP_1": gpus[1],
    }
    environs = step([1, 1, 1], **{**het, **extra})
    for environ, count in zip(environs, [gpus[0], gpus[1], gpus[1]], strict=True):
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, range(int(count.rpartition(":")[2] or "0"))))
    return environs


def own_het_step(gpus: list[str]) -> list[dict[str, str]]:
    """Return the same step as `srun … : …` starts it outside a job, with only the older variables of Slurm 22.05."""
    older = {
        "SLURM_PACK_SIZE": "2",
        "SLURM_JOB_ID_PACK_GROUP_0": "13",
        "SLURM_JOB_ID_PACK_GROUP_1": "14",
        "SLURM_JOB_NODELIST_PACK_GROUP_0": "n1",
        "SLURM_JOB_NODELIST_PACK_GROUP_1": "n[2-3]",
    }
    environs = [{**environ, **older} for environ in het_step(gpus)]
    return [{name: value for name, value in environ.items() if "_HET_GROUP_" not in name} for environ in environs]


def check_one_world(placements: list[Placement]) -> None:
    """Check that each rank exists once, that local ranks have no gap, and that all agree on endpoint and sizes."""
    workers = sorted((worker for placement in placements for worker in placement.workers), key=lambda w: w.rank)
    (world,) = {placement.world_size for placement in placements}
    assert [worker.rank for worker in workers] == list(range(world))
    assert len({placement.endpoint for placement in placements}) == 1
    assert len({placement.nodes for placement in placements}) == 1
    for node in {worker.node_rank for worker in workers}:
        local = sorted(worker.local_rank for worker in workers if worker.node_rank == node)
        assert local == list(range(len(local)))
        assert {p.local_world_size for p in placements if p.node_rank == node} == {len(local)}
    (first,) = (placement for placement in placements if placement.workers[0].rank == 0)
    assert first.endpoint.host in (first.host, "127.0.0.1")

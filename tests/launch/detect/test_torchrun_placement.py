"""RANK and WORLD_SIZE set by torchrun, in a PyTorchJob's pods and by hand; each has its own pitfall."""

import pytest
from placing import batch_script, place, shown, step

from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.process_facts import ProcessFacts
from tests.refusal import refusal_with


def torchrun(*counts: int, master: str = "n1", **extra: str) -> list[dict[str, str]]:
    """Return the variables that torchrun 2.13 sets; `counts`: workers on each node."""
    elastic = {"RUN_ID": "none", "RESTART_COUNT": "0", "MAX_RESTARTS": "3", "USE_AGENT_STORE": "True"}
    common = {"WORLD_SIZE": str(sum(counts)), "GROUP_WORLD_SIZE": str(len(counts)), "MASTER_ADDR": master}
    common |= {"MASTER_PORT": "29771", **{f"TORCHELASTIC_{name}": value for name, value in elastic.items()}}
    environs = []
    for node, count in enumerate(counts):
        for local in range(count):
            own = {"RANK": len(environs), "LOCAL_RANK": local, "GROUP_RANK": node, "LOCAL_WORLD_SIZE": count}
            environs.append({**common, **{name: str(number) for name, number in own.items()}, **extra})
    return environs


def pods(count: int, workers: int = 1, **extra: str) -> list[dict[str, str]]:
    """Return the variables of a PyTorchJob's pods (Kubeflow's pkg/controller.v1/pytorch/envvar.go)."""
    master = {"MASTER_ADDR": "job-master-0", "MASTER_PORT": "23456"}
    common = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "WORLD_SIZE": str(count * workers), "PET_NNODES": str(count)}
    common |= master | {f"PET_{name}": value for name, value in master.items()}
    return [{**common, "RANK": str(pod), "PET_NODE_RANK": str(pod), **extra} for pod in range(count)]


@pytest.mark.parametrize("gpus", [False, True], ids=["cpu", "gpu"])
@pytest.mark.parametrize("counts", [(1,), (4,), (2, 2), (2, 1), (1, 3, 2)], ids=str)
def test_torchrun_on_any_nodes(counts: tuple[int, ...], gpus: bool) -> None:
    placements = [place(environ, gpus=gpus, host=f"n{int(environ['GROUP_RANK']) + 1}") for environ in torchrun(*counts)]
    for rank, placement in enumerate(placements):
        (worker,) = placement.workers
        assert placement.launcher == "torchrun"
        assert (worker.rank, placement.world_size) == (rank, sum(counts))
        assert (len(placement.nodes), placement.local_world_size) == (len(counts), counts[placement.node_rank])
        assert str(worker.device) == (f"cuda:{worker.local_rank}" if gpus else "cpu")
        assert placement.host == f"n{placement.node_rank + 1}"
        assert (placement.endpoint.host, placement.endpoint.port) == ("n1", 29771)
        # torchrun's agent serves the store, so rank 0 must not open the port itself.
        assert placement.endpoint.served_by == "torchrun"


def test_torchrun_inside_a_slurm_job_wins() -> None:
    # In `srun -N2 --ntasks-per-node=1 torchrun --nnodes 2 --nproc-per-node 2`, SLURM_PROCID numbers the agents.
    tasks = step([1, 1])
    placements = [place({**tasks[int(env["GROUP_RANK"])], **env}) for env in torchrun(2, 2)]
    assert [placement.workers[0].rank for placement in placements] == [0, 1, 2, 3]
    assert {(p.launcher, p.world_size) for p in placements} == {("torchrun", 4)}
    # A batch script may start torchrun without srun.
    assert [place({**batch_script(["n1"], [4]), **env}).launcher for env in torchrun(2)] == ["torchrun"] * 2


@pytest.mark.parametrize(
    ("extra", "restarts"),
    [
        pytest.param({}, 0, id="the first start"),
        pytest.param({"TORCHELASTIC_RESTART_COUNT": "2"}, 2, id="torchrun's restarts"),
        pytest.param({"SLURM_RESTART_COUNT": "1"}, 4, id="a requeue starts torchrun's count anew, and not ours"),
        pytest.param({"TORCHELASTIC_RESTART_COUNT": "1", "SLURM_RESTART_COUNT": "2"}, 9, id="both"),
    ],
)
def test_restarts_never_fall_back(extra: dict[str, str], restarts: int) -> None:
    assert place({**torchrun(2)[0], **extra}).restarts == restarts


@pytest.mark.parametrize(
    ("environ", "request_", "gpus", "expected"),
    [
        pytest.param(torchrun(1)[0], None, True, "3 of this node's 4 visible devices", id="one worker, four devices"),
        pytest.param(torchrun(2)[1], LaunchRequest(devices="2"), True, "", id="as many as devices= says"),
        pytest.param(torchrun(2)[1], LaunchRequest("cpu", "2"), False, "", id="devices=2 is those of torchrun"),
    ],
)
def test_one_rank_a_process(environ: dict[str, str], request_: LaunchRequest, gpus: bool, expected: str) -> None:
    placement = place(environ, request_, gpus)
    assert [worker.rank for worker in placement.workers] == [int(environ["RANK"])]
    assert bool(placement.warnings) == bool(expected)
    assert expected in " ".join(placement.warnings)


@pytest.mark.parametrize(
    ("gpus", "extra", "expected"),
    [
        pytest.param(True, {}, ["0/0/0 cuda:0 1/1/0 cuda:1", "2/0/1 cuda:0 3/1/1 cuda:1"], id="auto"),
        pytest.param(True, {"PET_NPROC_PER_NODE": "2", "WORLD_SIZE": "4"},
            ["0/0/0 cuda:0 1/1/0 cuda:1", "2/0/1 cuda:0 3/1/1 cuda:1"], id="nprocPerNode multiplies WORLD_SIZE"),
        pytest.param(False, {}, ["0/0/0 cpu", "1/0/1 cpu"], id="without GPUs"),
        pytest.param(True, {"PET_NNODES": "", "PET_NODE_RANK": ""}, ["0/0/0 cuda:0 1/1/0 cuda:1"],
            id="an older operator"),
    ],
)  # fmt: skip
def test_a_pod_starts_a_worker_on_each_device(gpus: bool, extra: dict[str, str], expected: list[str]) -> None:
    mask = {"CUDA_VISIBLE_DEVICES": "0,1"} if gpus else {}
    environs = [{**environ, **mask, **extra} for environ in pods(2)]
    placements = [place(environ, gpus=gpus, host=f"job-{number}") for number, environ in enumerate(environs)]
    assert [shown(placement) for placement in placements][: len(expected)] == expected
    assert placements[0].world_size == (4 if gpus else 2)
    assert {placement.endpoint.port for placement in placements} == {23456}
    assert placements[1].endpoint.host == "job-master-0"
    assert not placements[1].endpoint.served_by


def test_the_master_pod_is_told_localhost_and_listens_to_all() -> None:
    environs = pods(2)
    environs[0]["MASTER_ADDR"] = "localhost"
    placement = place(environs[0], host="job-master-0")
    assert placement.endpoint.host == "job-master-0"
    assert placement.reasons["endpoint"].startswith("job-master-0, as MASTER_ADDR=localhost in the pod")
    # torchrun's agent listens on all addresses, so workers on its machine may reach it as localhost.
    assert place(torchrun(2, 2, master="localhost")[0]).endpoint.host == "localhost"


def test_a_master_on_this_machine_means_that_every_rank_is_here() -> None:
    environs = [{"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)} for rank in range(2)]
    placements = [place(environ, LaunchRequest(master_addr="localhost")) for environ in environs]
    assert [(p.endpoint.host, len(p.nodes), p.local_world_size) for p in placements] == [("localhost", 1, 2)] * 2


def by_hand(count: int, **extra: str) -> list[dict[str, str]]:
    return [{"RANK": str(rank), "WORLD_SIZE": str(count), "MASTER_ADDR": "n1", **extra} for rank in range(count)]


def test_ranks_by_hand() -> None:
    # There is one process on each machine, and the port is torch's default.
    placements = [place(environ, host=f"n{rank + 1}") for rank, environ in enumerate(by_hand(3))]
    assert [placement.workers[0].rank for placement in placements] == [0, 1, 2]
    assert {(p.launcher, p.world_size, p.endpoint.port) for p in placements} == {("torchrun", 3, 29500)}
    # With LOCAL_RANK, and a separate mask for each process, as set by wrappers around mpirun, ssh or parallel.
    wrapped = {"LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "CUDA_VISIBLE_DEVICES": "3"}
    placement = place({**by_hand(2)[1], **wrapped}, gpus=True)
    assert shown(placement) == "1/1/0 cuda:0"
    assert "peer-to-peer" in placement.warnings[0]


@pytest.mark.parametrize(
    ("environ", "request_", "gpus", "words"),
    [
        pytest.param({"RANK": "0", "WORLD_SIZE": "2"}, None, False, ["no MASTER_ADDR", "MASTER_ADDR=HOST"],
            id="no master"),
        pytest.param({**pods(2)[1], "MASTER_ADDR": "localhost"}, None, False, ["MASTER_ADDR=localhost means another"],
            id="localhost in another pod than the master"),
        pytest.param({"RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "::1"}, None, False,
            ["MASTER_ADDR=::1 means another machine on each of the 2 nodes"], id="localhost and ranks elsewhere"),
        pytest.param({**torchrun(2)[0], "LOCAL_RANK": "2"}, None, False, ["LOCAL_RANK=2"], id="a local rank too many"),
        pytest.param({**torchrun(2)[1], "CUDA_VISIBLE_DEVICES": "0"}, None, True,
            ["2 tasks on this node but 1 visible device", "--nproc-per-node 1"],
            id="two of torchrun's workers would share a device"),
        pytest.param(torchrun(8)[7], None, True, ["8 tasks", "4 visible devices", "--nproc-per-node 4"],
            id="more workers than GPUs"),
        pytest.param(torchrun(2)[0], LaunchRequest("cpu", "3"), False, ["2 tasks", "3 cpu devices"], id="devices=3"),
    ],
)  # fmt: skip
def test_is_refused_in_words(environ, request_: LaunchRequest | None, gpus: bool, words: list[str]) -> None:
    with refusal_with(*words):
        place(environ, request_, gpus)


def test_ranks_in_a_stripped_slurm_step_are_not_believed() -> None:
    facts = ProcessFacts(ancestors=("slurmstepd: [13.0]",))
    with refusal_with("--cleanenv"):
        place(by_hand(2)[0], facts=facts)
    # If torchrun was started inside the container, its variables are complete.
    assert place(torchrun(2)[0], facts=facts).launcher == "torchrun"

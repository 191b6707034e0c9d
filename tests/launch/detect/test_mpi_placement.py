"""mpirun and mpiexec: the variables of Open MPI 4.1.4 and MPICH 4.0.2 on one and two machines, and of Open MPI 5."""

import pytest
from placing import batch_script, block, check_one_world, cyclic, place, step

from noether.launch.detect.endpoint import derived
from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from tests.refusal import refusal_with


def open_mpi(*counts: int, daemons: tuple[int, ...] = (), by_node: bool = False, **extra: str) -> list[dict[str, str]]:
    """Return the variables that Open MPI 4.1.4's `mpirun -n …` sets on two machines; `daemons`: index of each node."""
    where = cyclic(counts) if by_node else block(counts)
    environs = []
    for rank, node in enumerate(where):
        daemon = daemons[node] if daemons else node
        address = f"192.0.2.{2 + daemon}"
        environs.append(
            {
                "OMPI_COMM_WORLD_RANK": str(rank),
                "OMPI_COMM_WORLD_SIZE": str(len(where)),
                "OMPI_COMM_WORLD_LOCAL_RANK": str(where[:rank].count(node)),
                "OMPI_COMM_WORLD_LOCAL_SIZE": str(counts[node]),
                # Despite its name, this is a rank among the processes of all jobs on this node.
                "OMPI_COMM_WORLD_NODE_RANK": str(where[:rank].count(node)),
                "OMPI_MCA_orte_num_nodes": str(len(counts)),
                "OMPI_MCA_orte_hnp_uri": "160366592.0;tcp://192.0.2.2:37633;tcp6://[fd00::2]:50733",
                "OMPI_MCA_orte_local_daemon_uri": f"160366592.{daemon};tcp://{address}:44259;tcp6://[fd00::3]:40779",
                "PMIX_RANK": str(rank),
                "PMIX_NAMESPACE": "160366593",
                "PMIX_HOSTNAME": f"n{node + 1}",
                "PMIX_SERVER_URI41": f"160366592.{daemon};tcp4://127.0.0.1:39525",
                **extra,
            }
        )
    return environs


def open_mpi_5(*counts: int) -> list[dict[str, str]]:
    """Return the variables of Open MPI 5: none is OMPI_MCA_orte_*, and PRRTE names its servers after mpirun's host."""
    environs = open_mpi(*counts)
    for environ in environs:
        daemon = environ["PMIX_SERVER_URI41"].partition(";")[0].rpartition(".")[2]
        environ["PMIX_SERVER_URI41"] = f"prterun-gpu-node-1-3903919@0.{daemon};tcp4://192.0.2.2:57983"
        for name in [name for name in environ if name.startswith("OMPI_MCA_")]:
            del environ[name]
    return environs


def hydra(*counts: int) -> list[dict[str, str]]:
    """Return the variables that MPICH 4.0.2's `mpiexec -n …` sets."""
    common = {"PMI_SIZE": str(sum(counts)), "PMI_FD": "6"}
    places = [(local, count) for count in counts for local in range(count)]
    own = [{"MPI_LOCALRANKID": str(local), "MPI_LOCALNRANKS": str(count)} for local, count in places]
    return [{**common, "PMI_RANK": str(rank), **one} for rank, one in enumerate(own)]


PROXY = "/usr/bin/hydra_pmi_proxy --control-port hostA:46685 --rmk user --launcher ssh --demux poll --proxy-id 1"
BEHIND_PROXY = ProcessFacts(ancestors=("bash wrapper.sh", PROXY))


@pytest.mark.parametrize(
    ("environs", "port", "facts"),
    [
        pytest.param(open_mpi(3), derived(160366592, 0, "")[0], NOTHING_KNOWN, id="Open MPI 4"),
        pytest.param(open_mpi_5(3), derived(3903919, 0, "")[0], NOTHING_KNOWN, id="Open MPI 5"),
        pytest.param(hydra(3), derived(46685, 0, "")[0], BEHIND_PROXY, id="Hydra, its proxy seen"),
        pytest.param(hydra(3), 29500, NOTHING_KNOWN, id="Hydra in a container"),
    ],
)
@pytest.mark.parametrize("gpus", [False, True], ids=["cpu", "gpu"])
def test_on_one_machine(environs: list[dict[str, str]], port: int, facts: ProcessFacts, gpus: bool) -> None:
    placements = [place(environ, gpus=gpus, facts=facts) for environ in environs]
    check_one_world(placements)
    for rank, placement in enumerate(placements):
        assert (placement.launcher, placement.world_size, placement.local_world_size) == ("mpi", 3, 3)
        assert (placement.endpoint.host, placement.endpoint.port) == ("127.0.0.1", port)
        assert str(placement.workers[0].device) == (f"cuda:{rank}" if gpus else "cpu")
        assert bool(placement.warnings) == gpus  # Only one of four devices is used.


@pytest.mark.parametrize("by_node", [False, True], ids=["by slot", "by node"])
@pytest.mark.parametrize("counts", [(1, 2), (2, 2), (3, 1)], ids=str)
def test_open_mpi_on_two_machines(counts: tuple[int, ...], by_node: bool) -> None:
    placements = [place(environ, host=environ["PMIX_HOSTNAME"]) for environ in open_mpi(*counts, by_node=by_node)]
    workers = [placement.workers[0] for placement in placements]
    assert [worker.rank for worker in workers] == list(range(sum(counts)))
    for node, count in enumerate(counts):
        assert sorted(worker.local_rank for worker in workers if worker.node_rank == node) == list(range(count))
    for placement in placements:
        assert (len(placement.nodes), placement.host) == (2, f"n{placement.node_rank + 1}")
        # This is the machine of mpirun, which runs rank 0.
        assert (placement.endpoint.host, placement.endpoint.port) == ("192.0.2.2", derived(160366592, 0, "")[0])


def test_open_mpi_5_on_two_machines() -> None:
    placements = [place(environ, host=environ["PMIX_HOSTNAME"]) for environ in open_mpi_5(2, 2)]
    assert [placement.workers[0].node_rank for placement in placements] == [0, 0, 1, 1]
    assert {placement.endpoint.host for placement in placements} == {"gpu-node-1"}


@pytest.mark.parametrize(
    ("environ", "extra", "request_", "host"),
    [
        pytest.param(hydra(2, 2)[3], {"MASTER_ADDR": "n1"}, LaunchRequest(), "n1",
            id="Hydra: mpiexec -genv MASTER_ADDR"),
        pytest.param(hydra(2, 2)[3], {}, LaunchRequest(master_addr="n1"), "n1", id="Hydra: master_addr"),
        pytest.param(open_mpi(1, 1)[1], {"MASTER_ADDR": "n7"}, LaunchRequest(), "n7", id="Open MPI: -x MASTER_ADDR"),
    ],
)  # fmt: skip
def test_the_master_is_told(environ: dict[str, str], extra: dict[str, str], request_: LaunchRequest, host: str) -> None:
    assert place({**environ, **extra}, request_).endpoint.host == host


def test_alone_in_its_world_it_starts_a_worker_on_each_device() -> None:
    for environs in (open_mpi(1), hydra(1)):
        placement = place(environs[0], gpus=True)
        assert (placement.launcher, placement.world_size, len(placement.workers)) == ("mpi", 4, 4)
        assert placement.endpoint.port == 0


def test_one_device_bound_to_each_by_a_wrapper() -> None:
    placement = place({**open_mpi(2)[1], "CUDA_VISIBLE_DEVICES": "1"}, gpus=True)
    assert [(str(w.device), w.device.name) for w in placement.workers] == [("cuda:0", "1")]
    assert "peer-to-peer" in placement.warnings[0]


def test_mpirun_inside_a_slurm_job_wins() -> None:
    # srun starts only the daemons, so SLURM_PROCID numbers the daemons.
    tasks = step([1, 1], SLURM_RESTART_COUNT="2")
    placements = [place({**tasks[0 if n < 2 else 1], **env}) for n, env in enumerate(open_mpi(2, 2))]
    assert [(p.launcher, p.workers[0].rank, p.restarts) for p in placements] == [("mpi", rank, 2) for rank in range(4)]
    assert [place({**batch_script(["n1"], [4]), **env}).launcher for env in hydra(2)] == ["mpi", "mpi"]


def test_sruns_pmi_is_slurms_to_answer() -> None:
    for rank, task in enumerate(step([2, 2])):
        placement = place({**task, "PMI_RANK": str(rank), "PMI_SIZE": "4", "PMI_FD": "6", "PMI_JOBID": "13.0"})
        assert (placement.launcher, placement.workers[0].rank) == ("slurm", rank)


def test_rank_variables_that_a_wrapper_sets_agree() -> None:
    extra = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "29511"}
    placement = place({**open_mpi(2)[1], **extra})
    assert (placement.launcher, placement.endpoint.port) == ("mpi", 29511)
    assert "RANK=1, WORLD_SIZE=2, LOCAL_RANK=1 agree" in placement.reasons["launcher"]


@pytest.mark.parametrize(
    ("environ", "request_", "gpus", "words"),
    [
        pytest.param({**hydra(1, 1)[1], "MASTER_ADDR": "localhost"}, None, False, 
            ["MASTER_ADDR=localhost means another machine on each of the 2 nodes"], id="localhost on two"),
        pytest.param({"PMI_RANK": "0", "PMI_SIZE": "2"}, None, False, ["no MPI_LOCALRANKID"], id="no local rank"),
        pytest.param({**hydra(2)[1], "PMI_RANK": "2"}, None, False, ["PMI_RANK=2"], id="a rank too many"),
        pytest.param(open_mpi(8)[7], None, True, ["8 tasks", "4 visible devices", "ppr:4:node"],
            id="more than the GPUs"),
    ],
)  # fmt: skip
def test_is_refused_in_words(environ, request_: LaunchRequest | None, gpus: bool, words: list[str]) -> None:
    with refusal_with(*words):
        place(environ, request_, gpus)


def test_settings_of_open_mpi_do_not_make_a_process_one_of_its_own() -> None:
    assert place({"OMPI_MCA_plm": "rsh", "OMPI_ALLOW_RUN_AS_ROOT": "1", "PMIX_MCA_gds": "hash"}).launcher == "local"

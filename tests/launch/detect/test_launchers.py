"""Launchers and schedulers are recognised by their variables; their processes join, train alone, or are refused."""

import json
from pathlib import Path

import pytest
from placing import check_one_world, place

from noether.launch.detect.placement import LaunchRequest
from tests.refusal import refusal


def each(count: int, **variables: str) -> list[dict[str, str]]:
    """Return the environments of `count` processes; each "#" in a value is replaced by the index of the process."""
    return [{name: value.replace("#", str(rank)) for name, value in variables.items()} for rank in range(count)]


def cluster_spec(rank: int) -> str:
    """Return Vertex AI's cluster spec of one process: a pool with the first replica, and a pool with two more."""
    pools = {"workerpool0": ["n1:2222"], "workerpool1": ["n2:2222", "n3:2222"]}
    return json.dumps({"cluster": pools, "task": {"type": f"workerpool{min(rank, 1)}", "index": max(0, rank - 1)}})


MAIN = {"AWS_BATCH_JOB_MAIN_NODE_PRIVATE_IPV4_ADDRESS": "n1"}  # The main node lacks this variable.
AWS = each(3, AWS_BATCH_JOB_NODE_INDEX="#", AWS_BATCH_JOB_NUM_NODES="3", AWS_BATCH_JOB_MAIN_NODE_INDEX="0")
SKYPILOT = each(3, SKYPILOT_NODE_RANK="#", SKYPILOT_NUM_NODES="3", SKYPILOT_NODE_IPS="n1\nn2\nn3\n")
ON_EACH_NODE = {
    "SkyPilot": SKYPILOT,
    "SkyPilot, an older one": [{**environ, "SKYPILOT_NUM_NODES": ""} for environ in SKYPILOT],
    "AWS Batch": [AWS[0], {**AWS[1], **MAIN}, {**AWS[2], **MAIN}],
    "dstack": each(3, DSTACK_NODE_RANK="#", DSTACK_NODES_NUM="3", DSTACK_MASTER_NODE_IP="n1"),
    "LeaderWorkerSet": each(3, LWS_WORKER_INDEX="#", LWS_GROUP_SIZE="3", LWS_LEADER_ADDRESS="n1"),
    "SageMaker": [{"SM_HOSTS": '["n1","n2","n3"]', "SM_CURRENT_HOST": f"n{rank + 1}"} for rank in range(3)],
    "Vertex AI": [{"CLUSTER_SPEC": cluster_spec(rank)} for rank in range(3)],
}


@pytest.mark.parametrize("name", ON_EACH_NODE)
def test_a_process_on_each_node_starts_its_devices_ranks(name: str) -> None:
    placements = [place(environ, gpus=True, host=f"n{rank + 1}") for rank, environ in enumerate(ON_EACH_NODE[name])]
    assert [worker.rank for placement in placements for worker in placement.workers] == list(range(12))
    for rank, placement in enumerate(placements):
        assert (placement.launcher, placement.node_rank, placement.nodes[0]) == (name.partition(",")[0], rank, "n1")
        assert (placement.host, placement.world_size) == (f"n{rank + 1}", 12)
        assert (placement.endpoint.host, placement.endpoint.port) == ("n1", 29500)


def test_rank_0_is_on_the_main_node_of_aws_batch() -> None:
    environs = [{**AWS[index], "AWS_BATCH_JOB_MAIN_NODE_INDEX": "1", **MAIN} for index in (2, 1, 0)]
    assert [place(environ).node_rank for environ in environs] == [1, 0, 2]


RANKS = {
    "MVAPICH": each(2, **{f"MV2_COMM_WORLD_{name}": "#" if "RANK" in name else "2"
                          for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}),
    "jsrun": each(2, JSM_NAMESPACE_RANK="#", JSM_NAMESPACE_SIZE="2", JSM_NAMESPACE_LOCAL_RANK="#",
                  JSM_NAMESPACE_LOCAL_SIZE="2", LSB_HOSTS="batch5 n1 n1"),
    "PALS": each(2, PALS_RANKID="#", PMI_RANK="#", PMI_SIZE="2", PALS_LOCAL_RANKID="#", PALS_LOCAL_SIZE="2"),
    "Flux": each(2, FLUX_TASK_RANK="#", FLUX_JOB_SIZE="2", FLUX_TASK_LOCAL_ID="#", FLUX_JOB_NNODES="1", PMI_RANK="#"),
}  # fmt: skip


@pytest.mark.parametrize("name", RANKS)
def test_launchers_of_ranks_join_as_mpiruns_do(name: str) -> None:
    placements = [place(environ, gpus=True) for environ in RANKS[name]]
    check_one_world(placements)
    assert [(p.launcher, p.world_size, str(p.workers[0].device)) for p in placements] == [
        ("mpi", 2, f"cuda:{rank}") for rank in range(2)
    ]


# The variables on n2, and the --nodes, --node-rank and --master-addr that follow from them.
NOT_KNOWN = {
    "PBS": ({"PBS_NODEFILE": "n1\nn1\nn2.lan\nn2.lan\n", "PBS_NODENUM": "0"}, "2 1 n1"),
    "Torque: pbsdsh, in a container": ({"PBS_NUM_NODES": "2", "PBS_NODENUM": "1"}, "2 1 HOST"),
    "LSF": ({"LSB_MCPU_HOSTS": "n1 8 n2 8", "LSB_HOSTS": "n1 " * 8 + "n2 " * 8}, "2 1 n1"),
    "Grid Engine": ({"PE_HOSTFILE": "n1 4 all.q@n1 UNDEFINED\nn2 4 all.q@n2 UNDEFINED", "NHOSTS": "2"}, "2 1 n1"),
    "OAR": ({"OAR_NODEFILE": "n1\nn2"}, "2 1 n1"),
    "HTCondor": ({"_CONDOR_PROCNO": "1", "_CONDOR_NPROCS": "2"}, "2 1 HOST"),
    "Azure Batch": ({"AZ_BATCH_NODE_LIST": "10.0.0.4;10.0.0.5"}, "2 K 10.0.0.4"),
    "Azure ML": ({"AZUREML_NODE_COUNT": "2", "NODE_RANK": "1", "MASTER_ADDR": "n1"}, "2 1 n1"),
    "TensorFlow's": ({"TF_CONFIG": cluster_spec(1)}, "3 1 n1"),
    "Volcano": ({"VC_WORKER_HOSTS": "n1.job,n2.job", "VC_TASK_INDEX": "1"}, "2 1 n1.job"),
    "PMIx, rank 0": ({"PMIX_RANK": "0", "PMIX_NAMESPACE": "prterun-n1-7@1"}, "N 0 HOST"),
    "ALPS, rank 0": ({"ALPS_APP_PE": "0"}, "N 0 HOST"),
    "SkyPilot, in part": ({"SKYPILOT_NODE_RANK": "1"}, "N 1 HOST"),
    "a number too high": ({**SKYPILOT[0], "SKYPILOT_NODE_RANK": "3"}, "3 1 n1"),
    "AWS Batch, in part": ({"AWS_BATCH_JOB_NODE_INDEX": "1", "AWS_BATCH_JOB_NUM_NODES": "3"}, "3 1 HOST"),
    "an operator's": ({"PET_NNODES": "1:4", "PET_NODE_RANK": "1"}, "4 1 HOST"),
    "the second of one machine": ({"LOCAL_RANK": "1"}, "N 1 HOST"),
    "one that nobody knows": ({"FOO_NODE_INDEX": "3", "FOO_NUM_NODES": "5"}, "5 3 HOST"),
}


def with_files(environ: dict[str, str], folder: Path) -> dict[str, str]:
    """Write the value of each variable *FILE to a file; return the environment with the file's path as the value."""
    files = {name: folder / name for name in environ if name.endswith("FILE")}
    for name, path in files.items():
        path.write_text(environ[name])
    return {**environ, **{name: str(path) for name, path in files.items()}}


@pytest.mark.parametrize(("environ", "settings"), NOT_KNOWN.values(), ids=NOT_KNOWN)
def test_what_is_not_known_never_trains_alone(environ: dict[str, str], settings: str, tmp_path: Path) -> None:
    environ, (nodes, number, master) = with_files(environ, tmp_path), settings.split()
    with refusal("launcher-not-known", fix=f"--nodes {nodes} --node-rank {number} --master-addr {master} ") as caught:
        place(environ, host="n2")
    assert f"{next(iter(environ))}=" in caught.value.seen
    assert place(environ, LaunchRequest(nodes=1), host="n2").launcher == "local"
    count, rank = int(nodes.replace("N", "5")), int(number.replace("K", "1"))
    told = LaunchRequest(nodes=count, node_rank=rank, master_addr="n1")
    assert place(environ, told, host="n2").world_size == count


ALONE: dict[str, dict[str, str]] = {
    "PBS": {"PBS_NODEFILE": "n1\nn1\n", "PBS_NODENUM": "0", "PBS_TASKNUM": "1", "NCPUS": "8"},
    "LSF": {"LSB_MCPU_HOSTS": "n1 8", "LSB_HOSTS": "n1 n1", "LSB_DJOB_NUMPROC": "8"},
    "SkyPilot": {"SKYPILOT_NODE_RANK": "0", "SKYPILOT_NUM_NODES": "1", "SKYPILOT_NODE_IPS": "n1"},
    "SageMaker": {"SM_HOSTS": '["algo-1"]', "SM_CURRENT_HOST": "algo-1"},
    "job arrays": {"PBS_ARRAY_INDEX": "3", "AWS_BATCH_JOB_ARRAY_INDEX": "3", "SGE_TASK_ID": "4"},
    "tests in CI": {"CI_NODE_INDEX": "2", "CI_NODE_TOTAL": "4", "PYTEST_XDIST_WORKER_COUNT": "4"},
    "a pod's services": {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "DB_NODE_RANK_SERVICE_PORT": "54", "NODE_NAME": "w-7"},
    "a workstation": {"LORA_RANK": "16", "ALLOWED_HOSTS": "localhost,n1", "NPROC": "8", "WANDB_SWEEP_ID": "x1"},
    "one node": {"PET_NNODES": "1", "NODE_RANK": "0", "LOCAL_RANK": "0"},
    "a request of srun's, in a shell": {"SLURM_NNODES": "2", "SLURM_NTASKS": "8"},
    "no numbers": {"NODE_RANK": "²", "NNODES": "9" * 5000, "TF_CONFIG": "[" * 100_000},
}


@pytest.mark.parametrize("environ", ALONE.values(), ids=ALONE)
def test_one_process_trains_alone(environ: dict[str, str], tmp_path: Path) -> None:
    placement = place(with_files(environ, tmp_path), host="n1")
    assert (placement.launcher, placement.world_size, placement.warnings) == ("local", 1, ())


@pytest.mark.parametrize("path", ["/var/spool/13", "/dev/zero"])
def test_a_list_of_hosts_that_a_container_lacks_is_warned_of(path: str) -> None:
    assert f"PBS_NODEFILE={path} cannot be read" in place({"PBS_NODEFILE": path}).warnings[0]

"""Common mistakes on Slurm: each is handled correctly, or refused with a fix."""

from dataclasses import dataclass, field

import pytest
from placing import batch_script, check_one_world, het_step, job_variables, no_gpus, own_het_step, place, step

from noether.launch.detect.endpoint import derived
from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from noether.launch.detect.resolve import resolve_placement
from tests.refusal import refusal, refusal_with

TERMINAL = ProcessFacts(stdin_is_terminal=True)
STEP_0 = ProcessFacts(ancestors=("slurmstepd: [13.0]",))
STEP_BATCH = ProcessFacts(ancestors=("bash /var/spool/slurmd/job00013/slurm_script", "slurmstepd: [13.batch]"))
TYPED = ProcessFacts(True, ("-bash", "slurmstepd: [13.0]"))
WRAPPED = ProcessFacts(True, ("bash -c noether train; echo done", "slurmstepd: [13.0]"))
IN_CGROUP = ProcessFacts(cgroup="0::/system.slice/slurmstepd.scope/job_13/step_0/user/task_1\n")

TASK = step([2, 2])[0]
"""The environment of rank 0 in a step with two tasks on each of two nodes (job 13, step 0)."""
TASK_3 = step([2, 2])[3]
ONE_NODE = step([4], devices=["0,1"])[0]
PTY = {"SLURM_PTY_PORT": "40001"}
INTERACTIVE = {"SLURM_STEP_ID": "4294967290", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}


ALONE_ON_N3 = {"SLURM_GTIDS": "0", "SLURMD_NODENAME": "n3"}


def without(environ: dict[str, str], *names: str) -> dict[str, str]:
    return {name: value for name, value in environ.items() if name not in names}


@dataclass(frozen=True)
class Local:
    """A process that trains on this node alone: its environment, the expected warning and the number of devices."""

    trap: str
    environ: dict[str, str]
    warned: str
    devices: int = 1
    facts: ProcessFacts = NOTHING_KNOWN
    request: LaunchRequest = field(default_factory=LaunchRequest)


@pytest.mark.parametrize(
    "case",
    [
        Local("two nodes, told nodes=1", batch_script(["n1", "n2"], [2, 2]), "2 nodes", request=LaunchRequest(nodes=1)),
        Local("salloc on the node itself, with a domain", {**job_variables(["box.lan"], [1])}, ""),
        Local("interactive step", {**ONE_NODE, **INTERACTIVE}, "an interactive step", 2),
        Local("typed there, without its terminal", {**ONE_NODE, **PTY}, "srun --overlap", 2,
            ProcessFacts(False, TYPED.ancestors)),
        Local(
            "sbatch -N1 from inside a 2 × 2 step: STEP_* are another job's",
            {**TASK, **job_variables(["n3"], [1], 14), "SLURM_NTASKS": "4", **ALONE_ON_N3},
            "environment of one",
        ),
        Local("the same shape, another node: STEP_NODELIST is another's",
            {**step([4])[0], **job_variables(["n3"], [4], 14), "SLURMD_NODENAME": "n3"}, "not a task of srun"),
        Local("the same shape and node: SLURM_GTIDS=0 of a batch script", {**step([4])[0], "SLURM_GTIDS": "0"}, "srun"),
        Local("the same shape and node: slurmstepd is the batch script's", step([4])[0], "batch script", 1, STEP_BATCH),
        Local("logged in by ssh", step([4])[0], "login", 1, ProcessFacts(ancestors=("slurmstepd: [13.extern]",))),
        Local("logged in by ssh, nothing set", {}, "", 1, ProcessFacts(cgroup="1:x:/slurm/uid_0/job_13/step_extern")),
        Local("stripped, told nodes=1", {}, "", 1, IN_CGROUP, LaunchRequest(nodes=1)),
    ],
    ids=lambda case: case.trap,
)  # fmt: skip
def test_trains_on_this_node_alone(case: Local) -> None:
    placement = place(case.environ, case.request, facts=case.facts)
    assert placement.launcher == "local"
    assert len(placement.nodes) == 1
    assert placement.world_size == len(placement.workers) == case.devices
    assert (placement.endpoint.host, placement.endpoint.port) == ("127.0.0.1", 0)
    assert bool(placement.warnings) == bool(case.warned)
    assert case.warned in " ".join(placement.warnings)
    if case.environ:
        assert "not started by srun" in placement.reasons["launcher"]


@pytest.mark.parametrize(
    ("environ", "facts"),
    [
        pytest.param(TASK, IN_CGROUP, id="cgroup seen"),
        pytest.param({**TASK, **PTY}, WRAPPED, id="srun --pty with a script"),
        pytest.param(TASK, TERMINAL, id="a terminal, no pty"),
        pytest.param({**TASK, "SLURM_JOB_NAME": "bash"}, NOTHING_KNOWN, id="a job called bash"),
        pytest.param(without(TASK, "SLURMD_NODENAME", "SLURM_GTIDS"), NOTHING_KNOWN, id="as little as is needed"),
        pytest.param(
            {**TASK, "SLURM_HET_SIZE": "2", "SLURM_JOB_ID_PACK_GROUP_0": "13", "SLURM_JOB_ID_PACK_GROUP_1": "14"},
            ProcessFacts(ancestors=("slurmstepd: [14.0]",)),
            id="a component of srun's own heterogeneous job, by the older names",
        ),
    ],
)  # fmt: skip
def test_is_a_task_of_srun(environ: dict[str, str], facts: ProcessFacts) -> None:
    placement = place(environ, facts=facts)
    assert (placement.launcher, placement.world_size, placement.endpoint.host) == ("slurm", 4, "n1")


@dataclass(frozen=True)
class Refused:
    """A process that is refused, and words that its error must contain."""

    trap: str
    environ: dict[str, str]
    words: tuple[str, ...]
    facts: ProcessFacts = NOTHING_KNOWN
    request: LaunchRequest = field(default_factory=LaunchRequest)
    host: str = ""


GPUS_4 = {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}
STRIPPED = ("variables were removed", "--cleanenv", "--export=NONE", "nodes=1")

REFUSED = [
    Refused("interactive step on two nodes", {**TASK, **INTERACTIVE}, ("interactive step", "srun noether train")),
    Refused("typed into srun --pty bash, two nodes", {**TASK, **PTY}, ("srun --overlap noether train",), TERMINAL),
    Refused("salloc on the login host, which has no GPU", job_variables(["n1"], [1]), ("salloc on login",),
        host="login", request=LaunchRequest("gpu")),
    Refused("--cleanenv: a task", {}, (*STRIPPED, "slurmstepd: [13.0]"), STEP_0),
    Refused("--cleanenv: a task, by its cgroup", {}, (*STRIPPED, "job_13/step_0"), IN_CGROUP),
    Refused("--cleanenv, and a variable passed by hand", {"SLURM_PROCID": "1"}, ("SLURM_JOB_ID", "every SLURM_*")),
    Refused("a container that passes some", without(TASK_3, "SLURM_STEP_NUM_TASKS"),
        ("SLURM_PROCID=3", "every SLURM_*")),
    Refused("a step whose variables are the job's", batch_script(["n1"], [1]),
        ("does not run in the Slurm step that its variables name", "no SLURM_STEP_ID"), STEP_0),
    Refused("a task with another step's environment", step([2, 2], step_id=1)[0], ("SLURM_STEP_ID=1", "[13.0]"),
        STEP_0),
    Refused("a task whose variables disagree", {**TASK, "SLURM_NTASKS": "8"},
        ("SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=8"), STEP_0),
    Refused("a count that is not the sum", {**TASK, "SLURM_STEP_NUM_TASKS": "5", "SLURM_NTASKS": "5"},
        ("SLURM_STEP_NUM_TASKS=5", "SLURM_STEP_TASKS_PER_NODE=2,2")),
    Refused("more counts than nodes", {**TASK, "SLURM_STEP_NODELIST": "n1"}, ("contradict", "SLURM_STEP_NODELIST=n1")),
    Refused("a rank that is too large", {**TASK, "SLURM_PROCID": "4", "SLURM_GTIDS": "4,5"}, ("SLURM_PROCID=4",)),
    Refused("a node that is not there", {**without(TASK, "SLURM_GTIDS"), "SLURM_NODEID": "2"}, ("SLURM_NODEID=2",)),
    Refused("a local rank that is too large", {**TASK, "SLURM_LOCALID": "2"}, ("SLURM_LOCALID=2",)),
    Refused("a local rank that is another's", {**TASK, "SLURM_LOCALID": "1"}, ("SLURM_PROCID=0, SLURM_GTIDS=0,1",)),
    Refused("a restart count that is none", {**TASK, "SLURM_RESTART_COUNT": "x"}, ("SLURM_RESTART_COUNT=x",)),
    Refused("two tasks on four devices", {**TASK, **GPUS_4},
        ("2 tasks on this node but 4 visible", "--ntasks-per-node=4")),
    Refused("two tasks on one device, which they would share",
        {**TASK, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "1"},
        ("2 tasks on this node but 1 visible device", "--ntasks-per-node=1")),
    Refused("devices= for fewer than the tasks", {**TASK, **GPUS_4}, ("2 tasks", "devices=1", "devices=2"),
        request=LaunchRequest(devices="1")),
    Refused("devices= that one bound device cannot be",
        {**TASK, "CUDA_VISIBLE_DEVICES": "0", "SLURM_GPUS_ON_NODE": "2"}, ("devices=3 requests more than are visible",),
        request=LaunchRequest(devices="3")),
    Refused("GPUs that are not even over nodes", {**step([1, 1], devices=["0,1"])[0], "SLURM_GPUS": "3"},
        ("3 GPUs on 2 nodes", "--gpus-per-node=1")),
    Refused("components of srun's own heterogeneous job, which never say how many GPUs", own_het_step(["4", "2"])[0],
        ("do not say how many", "devices=N", "one task per device")),
    Refused("a component with another mask", {**het_step(["4", "2"])[1], "CUDA_VISIBLE_DEVICES": "0"},
        ("1 devices on this node", "gave it 2")),
    Refused("LOCAL_RANK contradicts SLURM_LOCALID", {**TASK_3, "RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "3"},
        ("LOCAL_RANK=3 contradicts", "SLURM_LOCALID=1")),
    Refused("MASTER_ADDR=n1x begins like n1", {**TASK, "MASTER_ADDR": "n10"}, ("MASTER_ADDR=n10 is not n1",)),
    Refused("master_addr means each node itself", TASK, ("master_addr=127.0.0.1 means another", "master_addr=HOST"),
        request=LaunchRequest(master_addr="127.0.0.1")),
    Refused("nodes=1 in a step of two", TASK, ("nodes=1", "the launcher says 2"), request=LaunchRequest(nodes=1)),
    Refused("node_rank= that is another's", TASK_3, ("node_rank=0", "leave node_rank out"),
        request=LaunchRequest(node_rank=0)),
    Refused("--distribution=arbitrary: rank 0 on the second node", step([1, 1], [1, 0])[0],
        ("first node of the step is not where rank 0 runs", "master_addr=HOST")),
    Refused("a node list in another order", {**TASK, "SLURMD_NODENAME": "n2"},
        ("another position in the step", "SLURMD_NODENAME=n2")),
]  # fmt: skip


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case.trap)
def test_is_refused_in_words(case: Refused) -> None:
    with refusal_with(*case.words):
        place(case.environ, case.request, host=case.host, facts=case.facts)


OWN = derived(13, 0, "")[0]
MEETINGS = {
    "nothing asked": ({}, {}, "n1", OWN),
    "the first node's name": ({"MASTER_ADDR": "n1"}, {}, "n1", OWN),
    "with a domain": ({"MASTER_ADDR": "n1.lan"}, {}, "n1.lan", OWN),
    "another network": ({"MASTER_ADDR": "n1-ib"}, {}, "n1-ib", OWN),
    "an address": ({"MASTER_ADDR": "192.0.2.7"}, {}, "192.0.2.7", OWN),
    "MASTER_PORT": ({"MASTER_PORT": "29501"}, {}, "n1", 29501),
    "MASTER_PORT=0 asks nothing": ({"MASTER_PORT": "0"}, {}, "n1", OWN),
    "master_port": ({}, {"master_port": 29502}, "n1", 29502),
    "master_addr": ({"MASTER_ADDR": "h"}, {"master_addr": "h"}, "h", OWN),
    "enroot's port of the job": ({"MASTER_PORT": "61013"}, {}, "n1", OWN),
}


@pytest.mark.parametrize(("environ", "settings", "host", "port"), MEETINGS.values(), ids=MEETINGS)
def test_where_two_nodes_meet(environ: dict[str, str], settings: dict, host: str, port: int) -> None:
    placements = [place({**task, **environ}, LaunchRequest(**settings)) for task in step([2, 2])]
    assert {(placement.endpoint.host, placement.endpoint.port) for placement in placements} == {(host, port)}
    assert all(host in placement.reasons["endpoint"] for placement in placements)


def test_one_node_meets_on_its_own_loopback_whatever_is_exported() -> None:
    for task in step([2], MASTER_ADDR="login", MASTER_PORT="29507"):
        endpoint = place(task).endpoint
        assert (endpoint.host, endpoint.port, endpoint.asked_by) == ("127.0.0.1", 29507, "MASTER_PORT")


def test_enroots_hook_agrees_and_slurm_answers() -> None:
    # The hook conf/hooks/extra/50-slurm-pytorch.sh of enroot sets these variables in each task of a step.
    for rank, task in enumerate(step([2, 2])):
        hook = {"MASTER_ADDR": "n1", "MASTER_PORT": str(61000 + 13), "WORLD_SIZE": "4", "RANK": str(rank)}
        placement = place({**task, **hook, "LOCAL_RANK": str(rank % 2)})
        assert placement.launcher == "slurm"
        assert [worker.rank for worker in placement.workers] == [rank]
        assert f"RANK={rank}, WORLD_SIZE=4, LOCAL_RANK={rank % 2} agree" in placement.reasons["launcher"]


@pytest.mark.parametrize("world", ["2", "8"], ids=["of the tasks", "of the ranks"])
def test_an_exported_world_size_may_count_tasks_or_ranks(world: str) -> None:
    placements = [place({**task, "WORLD_SIZE": world}) for task in step([1, 1], devices=["0,1,2,3"])]
    check_one_world(placements)
    assert placements[0].world_size == 8


@pytest.mark.parametrize("devices", [None, "2", "0,1"], ids=str)
def test_devices_for_the_node_fit_tasks_that_see_one_each(devices: str | None) -> None:
    for task in step([2, 2], devices=["0", "1"], SLURM_GPUS_ON_NODE="2"):
        (worker,) = place(task, LaunchRequest(devices=devices)).workers
        assert (str(worker.device), worker.device.name) == ("cuda:0", str(worker.local_rank))


def test_devices_choose_among_more_than_the_tasks() -> None:
    placements = [place(task, LaunchRequest(devices="1,3")) for task in step([2, 2], devices=["0,1,2,3"])]
    check_one_world(placements)
    assert [str(placement.workers[0].device) for placement in placements] == ["cuda:1", "cuda:3"] * 2


def test_ntasks_wins_over_ntasks_per_node() -> None:
    # sbatch -N4 -n4 --ntasks-per-node=4, from a popular answer: its author expects 16 tasks, but there are 4.
    tasks = step([1, 1, 1, 1], SLURM_NTASKS_PER_NODE="4")
    assert "SLURM_NTASKS_PER_NODE=4, but SLURM_NTASKS=4" in place(tasks[0]).warnings[0]
    # With GPUs, the task on each node starts a worker on each GPU, so there are 16 ranks.
    assert place({**tasks[3], **GPUS_4}).world_size == 16


def test_several_machines_by_hand_inside_an_allocation() -> None:
    request = LaunchRequest(nodes=2, node_rank=1, master_addr="n1")
    placement = place(batch_script(["n1", "n2"], [1, 1]), request)
    assert (placement.launcher, placement.world_size, placement.workers[0].rank) == ("multinode", 2, 1)


def test_a_nodes_real_lack_of_gpus_is_still_said() -> None:
    with refusal("no-gpu-visible"):
        resolve_placement(LaunchRequest("gpu"), batch_script(["n1"], [1]), "n1", no_gpus)

"""If a command is refused, it succeeds once the printed fix is applied; a single process is not refused."""

import dataclasses
import re
import shlex
from contextlib import suppress
from pathlib import Path

import pytest
from placing import batch_script, het_step, job_variables, place, step
from processes import mpirun
from test_local_placement import place_on_nodes
from test_mpi_placement import hydra, open_mpi
from test_torchrun_placement import by_hand, pods, torchrun

from noether.common.errors import RequestError
from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import NOTHING_KNOWN
from noether.launch.detect.resolve import refuse_several
from tests.refusal import refusal

TWO_HOSTS = hydra(1, 1)[1]
TASK = step([1, 1])[1]

# Refused commands, each as its environment, its settings, and whether four GPUs are visible.
ENVIRONMENTS: dict[str, tuple[dict[str, str], dict[str, object], bool]] = {
    "WORLD_SIZE-alone": ({"WORLD_SIZE": "2"}, {}, False),
    "RANK-alone": ({"RANK": "0"}, {}, False),
    "RANK-not-below-WORLD_SIZE": ({**by_hand(2)[1], "RANK": "7"}, {}, False),
    "RANK-is-not-a-number": ({**step([2])[0], "RANK": "first"}, {}, False),
    "RANK-against-Slurm": ({**step([2])[0], "RANK": "1", "WORLD_SIZE": "2"}, {}, False),
    "RANK-against-Open-MPI": ({**open_mpi(2)[1], "RANK": "0"}, {}, False),
    "MASTER_ADDR-is-every-node's-own": ({**TASK, "MASTER_ADDR": "127.0.0.1"}, {}, False),
    "MASTER_ADDR-is-another-node": ({**TASK, "MASTER_ADDR": "login"}, {}, False),
    "MASTER_ADDR-against-the-setting": (by_hand(2)[0], {"master_addr": "elsewhere"}, False),
    "MASTER_ADDR-against-the-setting-in-a-step": ({**TASK, "MASTER_ADDR": "n1"}, {"master_addr": "n7"}, False),
    "MASTER_ADDR-against-torchrun": (torchrun(2)[0], {"master_addr": "elsewhere"}, False),
    "two-ports": ({**TASK, "MASTER_PORT": "29501"}, {"master_port": 29502}, False),
    "MASTER_PORT-is-not-a-port": ({**TASK, "MASTER_PORT": "99999"}, {}, False),
    "nobody-says-where-rank-0-is": (TWO_HOSTS, {}, False),
    "rank-0-away-from-mpirun": (open_mpi(1, 1, daemons=(1, 2))[0], {}, False),
    "several-GPUs-for-one-rank": (by_hand(2)[0], {}, True),
    "nodes-against-the-launcher": (open_mpi(1, 1)[1], {"nodes": 3}, False),
    "node_rank-against-the-launcher": (torchrun(1, 1)[1], {"node_rank": 0}, False),
    "node_rank-without-nodes": ({}, {"node_rank": 1}, False),
    "nodes-without-the-others": ({}, {"nodes": 2}, False),
    "node_rank-too-large": ({}, {"nodes": 2, "node_rank": 2, "master_addr": "a"}, False),
    "nodes-of-a-launcher-that-is-not-known": ({"NODE_RANK": "1", "PET_NNODES": "1:2"}, {}, False),
    "threads-that-are-no-number": ({"OMP_NUM_THREADS": "abc"}, {}, False),
    "no-thread-at-all": ({"OMP_NUM_THREADS": "0,2"}, {}, False),
    "a-port-of-5000-digits": ({"MASTER_PORT": "9" * 5000}, {}, False),
    "devices-of-5000-digits": ({}, {"devices": "9" * 5000}, False),
    "more-tasks-than-GPUs-asked-for": (step([4])[0], {"devices": "2"}, True),
    "more-CPU-workers-than-cores": ({}, {"devices": "4000"}, False),
    "a-device-that-is-not-there": ({}, {"devices": "0,9"}, True),
    "a-device-twice": ({}, {"devices": "1,1"}, True),
    "a-mask-of-absent-GPUs": ({"CUDA_VISIBLE_DEVICES": "0,7"}, {}, True),
    "a-mask-with-a-gap": ({"CUDA_VISIBLE_DEVICES": "0,,1"}, {}, True),
    "no-GPU": ({}, {"accelerator": "gpu"}, False),
    "a-GPU-granted-that-does-not-answer": ({"CUDA_VISIBLE_DEVICES": "0"}, {}, False),
    "no-Apple-silicon": ({}, {"accelerator": "mps"}, False),
    "a-pod-of-another-world": (pods(2, 2, PET_NPROC_PER_NODE="2")[0], {}, True),
}
PLACES = {"HOST": "n1"}


def resolve(environ: dict[str, str], settings: dict[str, object], gpus: bool) -> Placement:
    return place(environ, LaunchRequest(**settings), gpus, "n1")  # type: ignore[arg-type]


def applied(fix: str, environ: dict[str, str], settings: dict[str, object]) -> tuple[dict[str, str], dict[str, object]]:
    """Apply the first line of a fix, without its remark; return the changed environment and settings."""
    first = re.split(r" {6}", fix.splitlines()[-1] if "accelerator=cpu" in fix else fix.splitlines()[0])[0]
    for name, value in PLACES.items():
        first = re.sub(rf"\b{name}\b", value, first)
    if first.startswith("unset "):
        gone = first.split()[1:]
        return {name: value for name, value in environ.items() if name not in gone}, settings
    if left_out := re.match(r"leave (\w+) out$", first):
        return environ, {name: value for name, value in settings.items() if name != left_out[1]}
    if manifest := re.match(r'nprocPerNode: "(\d+)"$', first):
        count = int(manifest[1])
        world = str(count * int(environ["PET_NNODES"]))
        return {**environ, "PET_NPROC_PER_NODE": str(count), "WORLD_SIZE": world}, settings
    environ, settings, words = dict(environ), dict(settings), shlex.split(first)
    fields = {field.name for field in dataclasses.fields(LaunchRequest)}
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, _, value = (word if "=" in word else f"{word}={following}").removeprefix("--").partition("=")
        name = name.replace("-", "_") if word.startswith("--") else name
        if name in fields:
            settings[name] = int(value) if name in ("nodes", "node_rank", "master_port") else value
        elif name.isupper() and "=" in word:
            environ[name] = value
    return environ, settings


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_the_fix_is_applied_and_the_start_is_planned(name: str) -> None:
    environ, settings, gpus = ENVIRONMENTS[name]
    with pytest.raises(RequestError) as caught:
        resolve(environ, settings, gpus)
    changed = applied(caught.value.fix, environ, settings)
    assert changed != (environ, settings), caught.value.fix
    assert resolve(*changed, gpus).world_size >= 1


@pytest.mark.parametrize("value", ["9" * 5000, "²", "-1", "1:2", "{", "[[", "/", "n[1-"], ids=lambda text: text[:4])
def test_whatever_a_variable_holds_is_placed_or_refused_in_words(value: str) -> None:
    steps = [*ENVIRONMENTS.values(), (het_step(["2", "2"])[1], {}, True), (torchrun(2)[0], {}, True)]
    for environ, settings, gpus in steps:
        for name in (*environ, "OMP_NUM_THREADS", "MASTER_PORT", "SLURM_GPUS", "SLURM_NTASKS_PER_NODE", "SM_HOSTS"):
            with suppress(RequestError):
                resolve({**environ, name: value}, settings, gpus)


def test_a_line_for_several_machines_is_right_on_each() -> None:
    with pytest.raises(RequestError) as caught:
        resolve({}, {"nodes": 2}, False)
    _, settings = applied(caught.value.fix, {}, {})
    other = int(re.search(r"--node-rank (\d+) on the other", caught.value.fix)[1])  # type: ignore[index]
    ranks = [place_on_nodes(f"n{rank + 1}", **{**settings, "node_rank": rank}) for rank in (0, other)]
    assert [placement.workers[0].rank for placement in ranks] == [0, 1]
    assert {placement.world_size for placement in ranks} == {2}


@pytest.mark.parametrize(
    "environ",
    [
        pytest.param(batch_script(["n1", "n2"], [1, 1]), id="bare-in-a-batch-script-of-two-nodes"),
        pytest.param({"SLURM_PROCID": "1"}, id="some-of-Slurm's-variables"),
        pytest.param({"OMPI_COMM_WORLD_RANK": "0"}, id="some-of-Open-MPI's-variables"),
    ],
)
def test_a_start_below_its_launcher_names_the_launcher(environ: dict[str, str]) -> None:
    with pytest.raises(RequestError) as caught:
        resolve(environ, {}, False)
    assert re.search(r"srun noether train|every (SLURM_\*|OMPI_\*)", caught.value.fix), caught.value.fix


TWO_NODES = ["n1", "n2"]
FOUR_TASKS = step([2, 2], names=TWO_NODES)
TORCHRUN = torchrun(2)[1]


@pytest.mark.parametrize(
    ("environ", "host", "fix"),
    [
        pytest.param(FOUR_TASKS[3], "n2", "srun --nodes=1 --ntasks=1 noether evaluate …", id="the last task of srun"),
        pytest.param(TORCHRUN, "box", "noether evaluate …      (without the launcher)", id="torchrun"),
    ],
)
def test_several_processes_are_refused(environ: dict[str, str], host: str, fix: str) -> None:
    with refusal("one-process-only") as caught:
        refuse_several("evaluate", environ, host, NOTHING_KNOWN)
    assert caught.value.fix == fix


@pytest.mark.parametrize(
    ("environ", "host"),
    [
        pytest.param({}, "box", id="a person"),
        pytest.param(step([1], names=["n1"])[0], "n1", id="one task"),
        pytest.param(job_variables(TWO_NODES, [2, 2]), "login", id="a shell of salloc"),
        pytest.param(batch_script(TWO_NODES, [2, 2]), "n1", id="a batch script of a larger job"),
        pytest.param({"RANK": "1"}, "box", id="a variable left behind"),
    ],
)
def test_one_process_works(environ: dict[str, str], host: str) -> None:
    refuse_several("evaluate", environ, host, NOTHING_KNOWN)


def test_mpirun_of_a_report_is_refused_and_writes_nothing(environ, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("")
    done = mpirun(["report", str(tmp_path)], environ)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "noether report runs in one process, but 2 were started" in done.stderr
    assert "mpirun -n 1 noether report …" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["config.yaml"]

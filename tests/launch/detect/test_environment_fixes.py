"""Every fix of a refused start is applied as it is written, and the start is planned."""

import dataclasses
import re
import shlex

import pytest
from placing import place
from slurm_steps import batch_script, step
from test_mpi_placement import hydra, open_mpi
from test_nodes_placement import place as place_on_nodes
from test_torchrun_placement import by_hand, pods, torchrun

from noether.common.errors import RequestError
from noether.launch.detect.placement import LaunchRequest, Placement

TWO_HOSTS = hydra(1, 1)[1]
TASK = step([1, 1])[1]

# A start that is refused: its environment, its settings, whether four GPUs are visible.
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
    """Does what the fix says, its remark in brackets and its other lines left out."""
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

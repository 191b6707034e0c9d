"""Placement of every process in recorded environments of a real Slurm: launcher, sizes, ranks, devices, rank 0.

A file of slurm_environments/ has sections: `[name: N process(es), the same in all]` with the variables that its
processes share, then sections such as `[name: process 0 on n1]` with the variables of one process.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from placing import place, shown

from noether.launch.detect.placement import LaunchRequest, Placement
from noether.launch.detect.process_facts import NOTHING_KNOWN, ProcessFacts
from tests.refusal import refusal_with

FOLDER = Path(__file__).parent / "slurm_environments"
_HEADING = re.compile(r"\[([^:]+): (?:(\d+) process\(es\), the same in all|process (\d+) on (\S+))\]")


@dataclass(frozen=True)
class DumpedProcess:
    host: str
    environ: dict[str, str]


def dump_names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.txt"))


def read_dump(name: str) -> dict[str, list[DumpedProcess]]:
    """Return the processes in each section of a dump, in the order of the file."""
    shared: dict[str, dict[str, str]] = {}
    counts: dict[str, int] = {}
    own: dict[str, list[tuple[str, dict[str, str]]]] = {}
    variables: dict[str, str] = {}
    for line in (FOLDER / f"{name}.txt").read_text().splitlines():
        heading = _HEADING.fullmatch(line)
        if heading and heading[2]:
            variables = shared[heading[1]] = {}
            counts[heading[1]] = int(heading[2])
        elif heading:
            variables = {}
            own.setdefault(heading[1], []).append((heading[4], variables))
        elif line and not line.startswith("#"):
            key, equals, value = line.partition("=")
            assert equals, f"{name}: {line}"
            variables[key] = value
    dump = {section: list(_processes(common, own.get(section, []))) for section, common in shared.items()}
    assert {section: len(processes) for section, processes in dump.items()} == counts, name
    return dump


def _processes(common: dict[str, str], own: list[tuple[str, dict[str, str]]]) -> Iterator[DumpedProcess]:
    if not own:
        yield DumpedProcess(common.get("HOSTNAME_", ""), common)
    for host, variables in own:
        yield DumpedProcess(host, {**common, **variables})


SHELL = ProcessFacts(stdin_is_terminal=True)


@dataclass(frozen=True)
class Case:
    """The expected result for the processes of one section of a dump.

    `workers` has one string per process, which lists "rank/local rank/node rank device" of each worker that it runs.
    `refused`: words of the error, if one is expected. `step`: the Slurm step that the ancestors of each process show.
    """

    trap: str
    dump: str
    section: str
    step: str
    launcher: str = "slurm"
    world: int = 0
    nodes: str = ""
    workers: tuple[str, ...] = ()
    master: str = ""
    restarts: int = 0
    warned: str = ""
    refused: tuple[str, ...] = ()
    accelerator: str = "auto"
    facts: ProcessFacts = NOTHING_KNOWN


def grid(nodes: int, tasks: int, devices: str = "cpu") -> tuple[str, ...]:
    """Return `workers` for a block distribution, one rank per task; `{}` in `devices` is the local rank."""
    places = [divmod(rank, tasks) for rank in range(nodes * tasks)]
    return tuple(f"{node * tasks + local}/{local}/{node} {devices.format(local)}" for node, local in places)


CYCLIC = ("0/0/0 cpu", "1/0/1 cpu", "2/1/0 cpu", "3/1/1 cpu")
TWO_BY_TWO = {"world": 4, "nodes": "n1 n2", "master": "n1"}
MANY_NODES = ("of the job's", "not started by srun", "srun noether train", "nodes=1")
PEER = "peer-to-peer"
FOUR_ON_ONE = {"world": 4, "nodes": "n1", "master": "127.0.0.1"}
BATCH = {"section": "batch", "step": "batch"}
ONE = {"world": 1, "nodes": "n1", "workers": ("0/0/0 cpu",), "master": "127.0.0.1"}
HYBRID_2 = ("0/0/0 cuda:0 1/1/0 cuda:1",)
HYBRID_4 = ("0/0/0 cuda:0 1/1/0 cuda:1 2/2/0 cuda:2 3/3/0 cuda:3",)

OF_TWO_NODES = "sbatch-N2-gpn2-tpn2 sbatch-N2-gres2-tpn2 constrain-gpn2-tpn2 sbatch-N2-n4-gpt1 sbatch-N4-n16-tpn4"
ON_CPUS, WITH_GPUS = "sbatch-N2-tpn2 export-none cpus-per-task", OF_TWO_NODES.split()[:3]

CASES = [
    *(Case("bare", dump, **BATCH, refused=MANY_NODES)
        for dump in f"{OF_TWO_NODES} batch-bare-N2-noN export-none cpus-per-task requeued cyclic".split()),
    *(Case("srun", dump, "srun", "0", workers=grid(2, 2), **TWO_BY_TWO) for dump in ON_CPUS.split()),
    *(Case("srun", dump, "srun", "0", workers=grid(2, 2, "cuda:{}"), **TWO_BY_TWO)
        for dump in (*WITH_GPUS, "salloc-N2-tpn2")),
    Case("srun, no sbatch", "srun-N2-tpn2", "srun", "0", workers=grid(2, 2), **TWO_BY_TWO),
    Case("fault 3: --ntasks without --ntasks-per-node", "srun-n4", "srun", "0", workers=grid(1, 4), **FOUR_ON_ONE),
    Case("cyclic: rank // local size is wrong", "srun-N2-n4-cyclic", "srun", "0", workers=CYCLIC, **TWO_BY_TWO),
    Case("PROCID and NTASKS are set in a batch script too", "sbatch-N2-tpn2", **BATCH, refused=MANY_NODES),
    Case("fault 4: sbatch body without srun", "sbatch-n4", **BATCH,
        **{**ONE, "launcher": "local"}, warned="SLURM_NTASKS=4"),
    Case("fault 3, in a batch script", "sbatch-n4", "srun", "0", workers=grid(1, 4), **FOUR_ON_ONE),
    Case("fault 5: --gpus-per-task, one device each", "sbatch-N2-n4-gpt1", "srun", "0",
        workers=grid(2, 2, "cuda:0"), warned=PEER, **TWO_BY_TWO),
    Case("bare with four GPUs: trains on them", "sbatch-gpus4-n4", **BATCH, launcher="local",
        world=4, nodes="n1", workers=HYBRID_4, master="127.0.0.1", warned="SLURM_NTASKS=4"),
    Case("--gpus", "sbatch-gpus4-n4", "srun", "0", workers=grid(1, 4, "cuda:{}"), **FOUR_ON_ONE),
    Case("--gpu-bind=single:1", "sbatch-N2-gpn2-tpn2-bindclosest", "srun", "0",
        workers=grid(2, 2, "cuda:0"), warned=PEER, **TWO_BY_TWO),
    Case("bare, --ntasks-per-gpu", "sbatch-ntasks-per-gpu", **BATCH, launcher="local",
        world=4, nodes="n1", workers=HYBRID_4, master="127.0.0.1", warned="srun noether train"),
    Case("--ntasks-per-gpu: one device each", "sbatch-ntasks-per-gpu", "srun", "0",
        workers=grid(1, 4, "cuda:0"), warned=PEER, **FOUR_ON_ONE),
    Case("-n4 with --ntasks-per-node=4 asks 16 and gets 4", "srun-N4-n4-tpn4", "srun", "0",
        world=4, nodes="n1 n2 n3 n4", workers=grid(4, 1), master="n1"),
    Case("16 tasks", "sbatch-N4-n16-tpn4", "srun", "0", world=16, nodes="n1 n2 n3 n4", workers=grid(4, 4), master="n1"),
    Case("salloc on the login host", "salloc-N2-tpn2", "allocshell", "", refused=("salloc on ctl", "n1, n2", "srun")),
    Case("a step on one of two nodes, one task, two devices", "salloc-N2-tpn2", "overlap1", "1",
        world=2, nodes="n1", workers=HYBRID_2, master="127.0.0.1"),
    Case("salloc of one node", "salloc-bare-1", "allocshell", "",
        refused=("salloc on ctl", "the job's nodes are n1", "srun")),
    Case("bare, one task: nothing to warn of", "batch-bare-N1", **BATCH, **{**ONE, "launcher": "local"}),
    Case("fault 4: bare, four tasks and two GPUs", "batch-bare-n4", **BATCH, launcher="local",
        world=2, nodes="n1", workers=HYBRID_2, master="127.0.0.1", warned="SLURM_NTASKS=4"),
    Case("hybrid: one task, four devices, in a job of two nodes", "N2-srun-ntasks1", "srun", "0",
        world=4, nodes="n1", workers=HYBRID_4, master="127.0.0.1"),
    Case("heterogeneous, bare", "het", **BATCH, refused=("2 of the job's 3 nodes", "srun noether train")),
    Case("heterogeneous: a component with GPUs and one without", "het", "srun01", "0",
        refused=("GPUs, but others have none", "n1", "--het-group=1")),
    Case("heterogeneous: 1 + 2 × 2 tasks, on the CPU", "het", "srun01", "0", accelerator="cpu",
        world=5, nodes="n1 n2 n3", master="n1",
        workers=("0/0/0 cpu", "1/0/1 cpu", "2/1/1 cpu", "3/0/2 cpu", "4/1/2 cpu")),
    Case("heterogeneous: the second component", "het", "srun1", "1",
        world=4, nodes="n2 n3", workers=grid(2, 2, "cuda:{}"), master="n2"),
    Case("heterogeneous: srun takes the first component only", "het", "srundefault", "2",
        **ONE, warned="n[2-3] is not used"),
    Case("overlapping step", "overlap", "overlap", "1", workers=grid(2, 2), **TWO_BY_TWO),
    Case("overlapping step on one node", "overlap", "overlap1", "2", **ONE),
    Case("srun --pty noether: four tasks on two devices", "srun-pty-bare", "pty", "0",
        refused=("4 tasks on this node but 2 visible devices", "--ntasks-per-node=2")),
    Case("srun --pty noether, on the CPU", "srun-pty-bare", "pty", "0",
        accelerator="cpu", workers=grid(1, 4), **FOUR_ON_ONE),
    Case("four steps from one srun --pty shell", "srun-pty-then-srun", "inner", "",
        world=4, nodes="n1 n2", workers=tuple(item for item in grid(2, 2) for _ in range(4)), master="n1"),
    Case("srun --pty with a command", "srun-pty-then-srun", "pty", "0", workers=grid(2, 2), **TWO_BY_TWO),
    Case("typed into srun --pty bash", "srun-pty-bash", "typed", "0", facts=SHELL, launcher="local",
        world=2, nodes="n2", workers=HYBRID_2, master="127.0.0.1", warned="SLURM_NTASKS=4"),
    Case("--exact step on the first node", "srun-exact-steps", "a", "0", **ONE),
    Case("--exact step on the second node", "srun-exact-steps", "b", "1", **{**ONE, "nodes": "n2"}),
    Case("bare, --mem", "mem", **BATCH, **{**ONE, "launcher": "local"}, warned="SLURM_NTASKS=2"),
    Case("--mem", "mem", "srun", "0", world=2, nodes="n1", workers=grid(1, 2), master="127.0.0.1"),
    Case("bare, GPUs 2 and 3 seen as 0 and 1", "constrain-other-gpus", **BATCH, launcher="local",
        world=2, nodes="n1", workers=HYBRID_2, master="127.0.0.1", warned="SLURM_NTASKS=2"),
    Case("GPUs 2 and 3 seen as 0 and 1", "constrain-other-gpus", "srun", "0",
        world=2, nodes="n1", workers=grid(1, 2, "cuda:{}"), master="127.0.0.1"),
    Case("requeued: the second start", "requeued", "srun", "0",
        world=2, nodes="n1 n2", workers=grid(2, 1), master="n1", restarts=1),
    Case("one task of a job of four", "step-fewer-than-job", "N1n1", "2", **ONE),
    Case("one task a node in a job of two a node", "step-fewer-than-job", "N2n2tpn1", "0",
        world=2, nodes="n1 n2", workers=grid(2, 1), master="n1"),
    Case("--ntasks-per-node that srun ignores", "step-fewer-than-job", "N2tpn1-ignored", "1",
        workers=grid(2, 2), **TWO_BY_TWO),
    Case("cyclic in a batch script", "cyclic", "srun", "0", workers=CYCLIC, **TWO_BY_TWO),
]  # fmt: skip


def placed(case: Case, process: DumpedProcess, facts: ProcessFacts) -> Placement:
    return place(process.environ, LaunchRequest(accelerator=case.accelerator), None, process.host, facts)


@pytest.mark.parametrize("visible", [False, True], ids=["variables alone", "slurmstepd seen"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.dump}-{case.section}: {case.trap}")
def test_every_dump(case: Case, visible: bool) -> None:
    processes = read_dump(case.dump)[case.section]
    placements = []
    for process in processes:
        facts = case.facts
        if visible and case.launcher == "slurm" and case.section != "allocshell":
            step = case.step or process.environ["SLURM_STEP_ID"]
            step = f"slurmstepd: [{process.environ['SLURM_JOB_ID']}.{step}]"
            facts = ProcessFacts(ancestors=("bash wrapper.sh", step))
        elif visible and case.launcher == "local":
            step = f"slurmstepd: [{process.environ['SLURM_JOB_ID']}.{case.step}]"
            facts = replace(case.facts, ancestors=("-bash", step))
        if case.refused:
            with refusal_with(*case.refused):
                placed(case, process, facts)
            continue
        placements.append(placed(case, process, facts))
    if case.refused:
        return
    assert [shown(placement) for placement in placements] == list(case.workers)
    for process, placement in zip(processes, placements, strict=True):
        assert placement.launcher == case.launcher
        assert placement.world_size == case.world
        assert placement.nodes == tuple(case.nodes.split())
        assert placement.host == process.host
        assert placement.restarts == case.restarts
        assert placement.endpoint.host == case.master
        assert bool(case.warned) == bool(placement.warnings), placement.warnings
        assert case.warned in "; ".join(placement.warnings)
        assert all(placement.reasons.values())
        job, step = int(process.environ["SLURM_JOB_ID"]), int(process.environ.get("SLURM_STEP_ID", "0"))
        # A process that runs alone binds any free port; tasks that srun starts separately compute the same port.
        derived = 20000 + (101 * job + step) % 9497 if len(placement.workers) < case.world else 0
        assert placement.endpoint.port == derived


def test_no_dump_and_no_section_is_left_out() -> None:
    there = {(name, section) for name in dump_names() for section in read_dump(name)}
    assert len(dump_names()) == 33
    assert {(case.dump, case.section) for case in CASES} == there

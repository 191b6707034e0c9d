"""On a real Slurm and on two hosts without it, ranks meet and learn the same as one process; the doctor checks them.

The cluster itself ends without leaving a process behind or changing the machine.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from learned import PROOF, check_learned

from launch.slurm.conftest import Slurm, check_learned_alike, running_cluster, wait_for
from noether.runs.folder import RunFolder

HOSTS = ("n1", "n2")
LIMIT_S = 170
NOETHER = (sys.executable, "-m", "noether")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2")


def train_words(output: Path, *overrides: str) -> list[str]:
    return ["train", "--hp", str(TINY), f"output_path={output}", "run_id=run", *PROOF, *overrides]


@pytest.mark.slow
@pytest.mark.parametrize(("tasks", "devices"), [(2, "null"), (1, "2")], ids=["task-per-rank-2x2", "hybrid-2x2"])
def test_ranks_over_two_hosts_learn_what_one_does(tasks, devices, slurm: Slurm, by_one, variables, tmp_path) -> None:
    train = [*NOETHER, *train_words(tmp_path, f"devices={devices}")]
    done = slurm.srun("-N2", f"--ntasks-per-node={tasks}", "-t5", *train, limit_s=170, **variables)
    assert done.returncode == 0, done.stdout + done.stderr
    check_learned(RunFolder(tmp_path / "run"), "slurm", 4, by_one)
    assert done.stdout.count("unseen cases of the test split") == 1, "only rank 0 speaks"


@pytest.mark.slow
def test_a_script_joins_without_a_launcher_of_ours(slurm: Slurm, variables) -> None:
    """srun starts the script, and `noether.join` finds its rank and rank 0's address."""
    program = (sys.executable, str(REPOSITORY / "tests/launch/slurm/any_script.py"), "join")
    done = slurm.srun("-N2", "-t3", *program, **variables, PYTHONPATH=str(REPOSITORY))
    check_learned_alike(done.stdout + done.stderr, 2)


def test_granted_gpus_without_a_driver_are_refused(slurm: Slurm, variables) -> None:
    for verb in ("train", "plan"):
        done = slurm.srun("-N1", "--gpus-per-node=2", *NOETHER, verb, "run_id=granted", limit_s=150, **variables)
        assert done.returncode == 2, done.stderr
        assert "CUDA_VISIBLE_DEVICES=0,1" in done.stderr
        assert "accelerator=cpu" in done.stderr


def test_bare_training_in_a_batch_script_never_hangs(slurm: Slurm, variables, tmp_path) -> None:
    """The job has four tasks, but no srun starts them; the command soon prints an error with the line to write."""
    script = " ".join(f"'{word}'" for word in [*NOETHER, *train_words(tmp_path, "devices=null")])
    own = f"{' '.join(NOETHER)} run {REPOSITORY}/tests/launch/slurm/any_script.py"
    job = slurm.submit(f"{script}\n{own}\n", "-n4", "-t5", **variables)
    slurm.wait(job, limit_s=120)
    assert "start every task: srun noether run" in slurm.output(job)
    assert "SLURM_" in slurm.output(job)


def by_check(report: dict) -> dict[str, dict]:
    return {finding["check"]: finding for finding in reversed(report["findings"])}


@pytest.mark.slow
def test_a_job_of_two_hosts_has_one_report(slurm: Slurm, variables, tmp_path) -> None:
    doctor = (*NOETHER, "doctor", "--json", "accelerator=cpu", f"output_path={tmp_path}")
    done = slurm.srun("-N2", "--ntasks-per-node=2", *doctor, limit_s=90, **variables)
    report = json.loads(done.stdout)
    found = by_check(report)
    assert done.returncode == 0, [finding for finding in report["findings"] if finding["level"] != "ok"]
    assert (report["launcher"], report["world_size"]) == ("slurm", 4)
    assert [host["ranks"] for host in report["hosts"]] == [[0, 1], [2, 3]]
    for name in ("names", "peers", "agreement", "host names", "store", "gloo", "bandwidth"):
        assert found[name]["level"] == "ok", found[name]
    assert "through eth0" in found["gloo"]["seen"], "hosts must not use the loopback interface"
    assert len(found["torch"]["hosts"]) == 2
    assert re.search(r"at \d+ MB/s .* in \d+ µs", found["bandwidth"]["seen"])


@pytest.fixture
def on_host(slurm: Slurm, variables: dict[str, str]) -> Callable[[int, list[str]], subprocess.CompletedProcess[str]]:
    """Return a function that runs a command, outside any Slurm job, on the host with a given index."""
    return lambda number, command: slurm.on(HOSTS[number], *command, limit_s=LIMIT_S, **variables)


@pytest.fixture
def on_both(on_host) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Return a function that runs `command(index)` on both hosts at the same time."""

    def run(command: Callable[[int], list[str]]) -> list[subprocess.CompletedProcess[str]]:
        with ThreadPoolExecutor(len(HOSTS)) as pool:
            return list(pool.map(lambda number: on_host(number, command(number)), range(len(HOSTS))))

    return run


def check(output: Path, launcher: str, done: list, by_one: dict) -> None:
    assert [one.returncode for one in done] == [0, 0], "".join(one.stdout + one.stderr for one in done)
    folder = RunFolder(output / "run")
    check_learned(folder, launcher, 4, by_one)
    assert len(json.loads(folder.plan.read_text())["nodes"]) == 2
    assert sum(one.stdout.count("unseen cases of the test split") for one in done) == 1, "only rank 0 speaks"


@pytest.mark.slow
def test_torchrun_over_two_hosts(on_both, by_one, tmp_path) -> None:
    program = [str(REPOSITORY / "entrypoint.py"), *train_words(tmp_path, "devices=null")]
    place = ("--master-addr", "n1", "--master-port", "29512", "--node-rank")
    check(tmp_path, "torchrun", on_both(lambda number: [*TORCHRUN, *place, str(number), *program]), by_one)


@pytest.mark.slow
def test_the_same_command_on_each_of_two_hosts(on_both, by_one, tmp_path) -> None:
    """Both hosts connect to rank 0's host by its name, at the default port."""
    noether = [*NOETHER, *train_words(tmp_path, "devices=2", "--nodes", "2")]
    place = ("--master-addr", "n1", "--node-rank")
    check(tmp_path, "multinode", on_both(lambda number: [*noether, *place, str(number)]), by_one)


@pytest.mark.slow
def test_a_master_that_is_the_other_host_is_refused_at_once(slurm, on_host, tmp_path) -> None:
    """Otherwise node 0 would wait on the other host for itself until distributed.init_timeout_s, and raise an error."""
    words = train_words(tmp_path, "--nodes", "2", "--node-rank", "0", "--master-addr", "n2", "master_port=29531")
    done = on_host(0, [*NOETHER, *words])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "rank 0 runs on n1, but the ranks are configured to meet at n2" in done.stderr
    assert "master_addr=n1 on every host" in done.stderr
    assert "Traceback" not in done.stderr


def namespaces(pids: Sequence[int]) -> set[str]:
    """Return the namespaces of the processes `pids` that are not namespaces of this process."""
    kinds = ("net", "uts", "mnt", "pid", "ipc")
    own = {os.readlink(f"/proc/self/ns/{kind}") for kind in kinds}
    return {os.readlink(f"/proc/{pid}/ns/{kind}") for pid in pids for kind in kinds} - own


def leftovers(folder: Path, spaces: set[str]) -> list[str]:
    """Return the processes that are in one of the namespaces, mount the folder, or name it in their arguments."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            within = {os.readlink(path) for path in (process / "ns").iterdir()} & spaces
            text = (process / "cmdline").read_text(errors="replace") + (process / "mountinfo").read_text()
        except OSError:  # The process ended meanwhile, or even root may not read it.
            continue
        if within or str(folder) in text:
            found.append(f"{process.name} {text[:200]}")
    return found


def host_pids(slurm: Slurm) -> list[int]:
    return [int(pid) for pid in re.findall(r"pid (\d+)", slurm.cluster("status").stdout)]


@pytest.mark.slow
def test_hosts_end_by_themselves_when_their_life_is_over() -> None:
    with running_cluster(nodes=1, life=6) as short:
        spaces = namespaces(host_pids(short))
        assert len(spaces) == 2 * 5
        wait_for("the hosts end", lambda: not leftovers(short.folder, spaces), 10)
        assert "pid" not in short.cluster("status").stdout

"""Two hosts with a network between them and no scheduler: torchrun on each, or `noether train --nodes 2` on each."""

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from learned import PROOF, check_learned

from launch.slurm.conftest import Slurm
from noether.runs.folder import RunFolder

HOSTS = ("n1", "n2")
LIMIT_S = 170
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2")


def train_words(output: Path, *overrides: str) -> list[str]:
    return ["train", "--hp", str(TINY), f"output_path={output}", "run_id=run", *PROOF, *overrides]


@pytest.fixture
def on_host(slurm: Slurm, variables: dict[str, str]) -> Callable[[int, list[str]], subprocess.CompletedProcess[str]]:
    """Runs a command on the host of a number; a job of Slurm has no part in it."""
    return lambda number, command: slurm.on(HOSTS[number], *command, limit_s=LIMIT_S, **variables)


@pytest.fixture
def on_both(on_host) -> Callable[..., list[subprocess.CompletedProcess[str]]]:
    """Runs a command on each host at once, made from the host's number."""

    def run(command: Callable[[int], list[str]]) -> list[subprocess.CompletedProcess[str]]:
        with ThreadPoolExecutor(len(HOSTS)) as pool:
            return list(pool.map(lambda number: on_host(number, command(number)), range(len(HOSTS))))

    return run


def check(output: Path, launcher: str, done: list, by_one: dict) -> None:
    words = "".join(
        f"{host}: {one.returncode}\n{one.stdout}{one.stderr}" for host, one in zip(HOSTS, done, strict=True)
    )
    assert [one.returncode for one in done] == [0, 0], words
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
    """By rank 0's name, at the usual port."""
    noether = [sys.executable, "-m", "noether", *train_words(tmp_path, "devices=2", "--nodes", "2")]
    place = ("--master-addr", "n1", "--node-rank")
    check(tmp_path, "multinode", on_both(lambda number: [*noether, *place, str(number)]), by_one)


@pytest.mark.slow
def test_a_master_that_is_the_other_host_is_refused_at_once(slurm, on_host, tmp_path) -> None:
    """Node 0 would look for itself there until distributed.init_timeout_s is over, and end in a traceback."""
    words = train_words(tmp_path, "--nodes", "2", "--node-rank", "0", "--master-addr", "n2", "master_port=29531")
    done = on_host(0, [sys.executable, "-m", "noether", *words])
    assert done.returncode == 2, done.stdout + done.stderr
    assert "rank 0 runs on n1, but the ranks are told to meet at n2" in done.stderr
    assert "master_addr=n1 on every host" in done.stderr
    assert "Traceback" not in done.stderr

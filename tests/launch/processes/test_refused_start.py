"""If one host refuses a run before it joins, the other hosts end at once, with its exit code, and name it."""

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import TINY
from processes import free_port, wait_for

INIT_S = 60
"""Seconds for which a host waits for another host; each test must end sooner."""


NONE: tuple[dict[str, str], ...] = ({}, {})


@pytest.fixture
def start_two(noether, tmp_path):
    """Return a function that starts two hosts of a run with separate arguments and variables, and waits for both."""

    def run(words, *common: str, variables=NONE) -> list:
        shared = ("train", "--hp", str(TINY), f"output_path={tmp_path}", f"distributed.init_timeout_s={INIT_S}")
        with ThreadPoolExecutor(2) as both:
            pairs = zip(words, variables, strict=True)
            hosts = [both.submit(noether, *shared, *common, *own, timeout=INIT_S, **more) for own, more in pairs]
        return [host.result() for host in hosts]

    return run


@pytest.fixture
def start_by_hand(start_two):
    """Return a function like `start_two`, for two hosts that a user starts by hand with `nodes=2`."""

    def run(words, *common: str, variables=NONE) -> list:
        where = ("nodes=2", "master_addr=127.0.0.1", f"master_port={free_port()}")
        own = [(f"node_rank={rank}", *words[rank]) for rank in (0, 1)]
        return start_two(own, *where, *common, variables=variables)

    return run


def task(rank: int, job: int) -> dict[str, str]:
    """Return the environment of one of two tasks that srun has started on this machine."""
    host = socket.gethostname()
    nodes = {"SLURM_STEP_NODELIST": host, "SLURM_JOB_NODELIST": host, "SLURMD_NODENAME": host}
    counts = {"SLURM_NTASKS": "2", "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    own = {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}
    return {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", **nodes, **counts, **own}


@pytest.mark.parametrize(
    ("job", "words", "code"),
    [
        pytest.param(901, ([], ["trainer.max_epohcs=3"]), "unknown-key", id="rank 1 cannot read its settings"),
        pytest.param(902, (["trainer.max_epohcs=3"], []), "unknown-key", id="rank 0 cannot read its settings"),
        pytest.param(903, ([], ["seed=5"]), "hosts-differ", id="other settings"),
        pytest.param(904, ([], ["accelerator=gpu"]), "no-gpu-visible", id="rank 1 has no GPU"),
        pytest.param(905, (["dataset_root=/nowhere"], []), "no-ellipsoid-data", id="rank 0 has no data"),
    ],
)
def test_all_hosts_end_with_the_refusal_of_one(start_two, tmp_path, job: int, words, code: str) -> None:
    ended = start_two(words, variables=[task(rank, job) for rank in (0, 1)])
    assert [host.code for host in ended] == [2, 2], ended
    refusing = next(rank for rank in (0, 1) if words[rank])
    assert f"[{code}]" in ended[refusing].err
    assert f"rank {refusing} on {socket.gethostname()}" in ended[1 - refusing].err
    if refusing == 1:  # Rank 0's host stores the report for the page and the logs.
        (kept,) = tmp_path.glob("*/logs/rank-1.error.json")
        assert json.loads(kept.read_text())["code"] == code
    if code == "hosts-differ":
        for host in ended:
            assert "seed=5" in host.err
            assert "seed=0" in host.err


def test_a_host_0_whose_folder_cannot_be_made_once_its_port_is_held_tells_the_other(start_two, tmp_path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "logs").write_text("in the way")
    first, second = start_two(([], []), "run_id=run", variables=[task(rank, 906) for rank in (0, 1)])
    assert first.code == second.code != 0, (first, second)
    assert "logs" in first.err
    assert f"rank 0 on {socket.gethostname()}" in second.err


BY_HAND = {
    "settings on host 1": (([], ["seed=5"]), "hosts-differ", ("seed=5", "seed=0")),
    "settings on host 0": ((["seed=5", "dataset_root=/no"], []), "hosts-differ", ("seed=5", "seed=0")),
    "nodes on host 0, by which no batch is shared": ((["nodes=3"], []), "hosts-differ", ("nodes=3", "nodes=2")),
    "nodes on host 1, by which it is": (([], ["nodes=4"]), "hosts-differ", ("nodes=4", "nodes=2")),
    "a name on host 1 that is too long": (([], [f"dataset_root={'x' * 300}"]), "name-too-long", ("255 bytes",)),
    "devices": (([], ["devices=2"]), "world-sizes-differ", ("with 4 on",)),
}


@pytest.mark.parametrize(("words", "code", "said"), BY_HAND.values(), ids=BY_HAND.keys())
def test_two_hosts_by_hand_end_at_once_with_what_differs(start_by_hand, words, code: str, said) -> None:
    for host in start_by_hand(words):
        assert host.code == 2
        assert f"[{code}]" in host.err
        assert all(one in host.err for one in said)


def test_a_host_whose_devices_are_refused_is_named_without_a_rank(start_by_hand) -> None:
    """The ranks of the refused host are unknown, because without its GPUs it assumes that all hosts use CPUs."""
    own = (("accelerator=cpu", "devices=2"), ("accelerator=gpu",))
    first, second = start_by_hand(own, "trainer.effective_batch_size=12")
    assert (first.code, second.code) == (2, 2), (first, second)
    assert "[no-gpu-visible]" in second.err
    assert f"source    {socket.gethostname()}\n" in first.err


WRONG = (
    ("DISTRIBUTED_TIMEOUT_S", "abc", "timeout-variable"),
    ("NOETHER_START_METHOD", "fork", "unknown-start-method"),
    ("GLOO_SOCKET_IFNAME", "lo,nocard0", "no-such-interface"),
)


@pytest.mark.parametrize(("name", "value", "code"), WRONG)
def test_a_wrong_variable_of_one_host_is_refused_on_both(noether, start_by_hand, tmp_path, name, value, code) -> None:
    """Regression: host 0 waited for ranks that never joined, and `noether plan` reported no mistake."""
    plan = noether("plan", "--hp", str(TINY), f"output_path={tmp_path}", "devices=2", **{name: value})
    assert (plan.code, f"[{code}]" in plan.err) == (2, True), plan.out + plan.err
    for host in start_by_hand(([], []), "devices=2", variables=({}, {name: value})):
        assert (host.code, f"[{code}]" in host.err) == (2, True), host.err


def test_a_second_host_0_is_told_that_there_is_one(noether, start, tmp_path) -> None:
    """Both hosts that start as node 0 are this machine, so both try to listen on the same port."""
    port = free_port()
    words = ("train", "--hp", str(TINY), "nodes=2", "node_rank=0", "master_addr=127.0.0.1", f"master_port={port}")
    first = start(*words, f"output_path={tmp_path / 'first'}", f"distributed.init_timeout_s={INIT_S}")
    wait_for("rank 0", lambda: "waits for rank 1" in os.read(first.stderr.fileno(), 4096).decode(), INIT_S)
    second = noether(*words, f"output_path={tmp_path / 'second'}", timeout=INIT_S)
    assert (second.code, "[rank-twice]" in second.err) == (2, True), second.err


def test_a_refused_port_leaves_no_run_behind_and_the_old_one_in_its_place(noether, tmp_path) -> None:
    words = ("--hp", str(TINY), f"output_path={tmp_path}", "devices=2", "run_id=run", "trainer.max_updates=1")
    assert noether("train", *words, timeout=INIT_S).code == 0
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = f"master_port={other.getsockname()[1]}"
        for more in (["run_id=another"], ["--reset"]):
            refused = noether("train", *words, taken, *more, timeout=INIT_S)
            assert (refused.code, "[port-unusable]" in refused.err) == (2, True), refused.err
    refused = noether("train", *words, "--reset", "initial_weights=typo", timeout=INIT_S)
    assert (refused.code, "[no-weights-there]" in refused.err) == (2, True), refused.err
    assert [folder.name for folder in tmp_path.iterdir()] == ["run"]
    assert not list(tmp_path.glob("run/logs/*.error.json"))

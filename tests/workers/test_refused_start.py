"""One host of a run refuses it before it joins: the others end at once, with its code and its name."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import TINY

INIT_S = 60
"""Seconds that a host waits for another: none of these tests may take as long."""


def task(rank: int, job: int) -> dict[str, str]:
    """The environment of one of two tasks that srun has started on this machine."""
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
def test_all_hosts_end_with_the_refusal_of_one(noether, tmp_path, job: int, words, code: str) -> None:
    common = ("train", "--hp", str(TINY), f"output_path={tmp_path}", f"distributed.init_timeout_s={INIT_S}")
    with ThreadPoolExecutor(2) as both:
        hosts = [both.submit(noether, *common, *words[rank], timeout=INIT_S, **task(rank, job)) for rank in (0, 1)]
    ended = [host.result() for host in hosts]
    assert [host.code for host in ended] == [2, 2], ended
    refusing = next(rank for rank in (0, 1) if words[rank])
    assert f"[{code}]" in ended[refusing].err
    assert f"rank {refusing} on {socket.gethostname()}" in ended[1 - refusing].err
    if refusing == 1:  # Rank 0's host keeps what the page and the logs show.
        (kept,) = tmp_path.glob("*/logs/rank-1.error.json")
        assert json.loads(kept.read_text())["code"] == code
    if code == "hosts-differ":
        for host in ended:
            assert "seed=5" in host.err
            assert "seed=0" in host.err


def test_a_taken_port_is_kept_as_the_cause_and_logs_name_it(noether, tmp_path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        words = ("--hp", str(TINY), f"output_path={tmp_path}", "devices=2", f"master_port={port}")
        refused = noether("train", *words, timeout=INIT_S)
    assert refused.code == 2
    assert "[port-unusable]" in refused.err
    (kept,) = tmp_path.glob("*/logs/rank-0.error.json")
    assert json.loads(kept.read_text())["code"] == "port-unusable"
    logs = noether("logs", str(kept.parents[1]), timeout=INIT_S)
    assert "rank-*.error.json" in logs.err

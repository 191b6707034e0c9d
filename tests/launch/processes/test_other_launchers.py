"""Started by torchrun, by mpirun or by hand, ranks join and learn the same weights as one process."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import TINY
from learned import PROOF, check_learned
from processes import free_port, mpirun, needs_namespaces, run_to_end, torchrun

from noether.runs.folder import RunFolder

LIMIT_S = 120


def train_words(output: Path, *overrides: str) -> list[str]:
    return ["train", "--hp", str(TINY), f"output_path={output}", "run_id=run", *PROOF, *overrides]


def under_torchrun(environ, output: Path, *overrides: str, module: str = "run") -> subprocess.CompletedProcess[str]:
    words = [*torchrun(module), "entrypoint.py", *train_words(output, "devices=null", *overrides)]
    return run_to_end(words, environ, limit_s=LIMIT_S)


@pytest.mark.slow
def test_torchrun_ranks_join_the_store_that_torchrun_serves(by_one, environ, tmp_path) -> None:
    done = under_torchrun(environ, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    check_learned(RunFolder(tmp_path / "run"), "torchrun", 2, by_one)


@pytest.mark.slow
def test_torchrun_makes_1_of_exit_code_75_and_the_run_folder_says_that_all_is_saved(environ, tmp_path) -> None:
    # torch.distributed.launch is the older module; it also passes --local-rank to each process.
    done = under_torchrun(environ, tmp_path, "trainer.timeout_min=0.01", module="launch")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "exitcode  : 75" in done.stderr
    assert json.loads(RunFolder(tmp_path / "run").stopped.read_text())["reason"] == "the time limit"


SKYPILOT = {"SKYPILOT_NODE_RANK": "#", "SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.2\n"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "words", "variables"),
    [
        ("multinode", ["--nodes", "2", "--node-rank", "#", "--master-addr", "127.0.0.1"], {}),
        ("SkyPilot", [], SKYPILOT),
    ],
)
def test_two_nodes_meet_at_the_address_they_are_given(
    by_one, environ, start_process, tmp_path, launcher: str, words: list[str], variables: dict[str, str]
) -> None:
    common = train_words(tmp_path, f"master_port={free_port()}", "tracker.report=true", *words)
    nodes = [
        start_process(
            [sys.executable, "-m", "noether", *(word.replace("#", str(rank)) for word in common)],
            env=environ | {name: value.replace("#", str(rank)) for name, value in variables.items()},
        )
        for rank in (1, 0)
    ]
    for rank, node in zip((1, 0), nodes, strict=True):
        out, err = node.communicate(timeout=LIMIT_S)
        assert node.returncode == 0, out + err
        assert (tmp_path / "run" / "report.html").exists(), "no rank may exit before rank 0 has written the report"
        if rank == 1:  # Its terminal shows nothing from rank 0.
            assert "joined rank 1 of 2 on " in out
            assert str(tmp_path / "run" / "logs") in out
            assert out.rstrip().endswith(": done")
    check_learned(RunFolder(tmp_path / "run"), launcher, 2, by_one)


@pytest.mark.slow
def test_two_plain_nodes_need_no_file_system_in_common(by_one, environ, start_process, tmp_path) -> None:
    """Node 1 mounts an empty folder at the path where node 0 writes the run."""
    needs_namespaces("mount a folder of its own", "--mount", "true")
    port, output = free_port(), tmp_path / "runs"
    output.mkdir()
    words = train_words(output, "--nodes", "2", "--master-addr", "127.0.0.1", f"master_port={port}")
    alone = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs own "$0" && exec "$@"', str(output)]
    nodes = [
        start_process([*before, sys.executable, "-m", "noether", *words, "--node-rank", str(rank)], env=environ)
        for rank, before in enumerate(([], alone))
    ]
    for node in nodes:
        out, err = node.communicate(timeout=LIMIT_S)
        assert node.returncode == 0, out + err
    check_learned(RunFolder(output / "run"), "multinode", 2, by_one)


@pytest.mark.slow
def test_mpirun_ranks_join(by_one, environ, tmp_path) -> None:
    done = mpirun(train_words(tmp_path, "devices=null"), environ)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout, "colours must be off: each rank sees a terminal, but mpirun writes to a pipe"
    check_learned(RunFolder(tmp_path / "run"), "mpi", 2, by_one)

"""Runs of the real program that fail on this machine: the failed rank is named once, and no process is left."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from misbehaving import WORDS, misbehave, processes_of
from processes import free_port, read_until, wait_for
from sharing import in_every_push

# noether promises ten seconds, but test machines are busy.
GONE_S = 40
START_S = 120
WELL = ("+model.how=never", "+model.rank=0")
ABSENT = {"sleep": ("sleep", "misbehaving.py"), "SIGSTOP": ("SIGSTOP", "does not respond: stopped by a signal")}

Run = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def run(environ: dict[str, str], tmp_path: Path, start_process: Run) -> Iterator[Run]:
    paths = {"PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}", "OF_THE_TEST": str(tmp_path)}

    def start(*words: str, **variables: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "noether", "train", "--hp", str(TINY), *words]
        own = [f"output_path={tmp_path}", "run_id=run"]
        return start_process([*command, *own], env={**environ, **paths, **variables})

    yield start
    for pid in processes_of(str(tmp_path)):
        os.kill(pid, signal.SIGKILL)


def nodes(count: int, rank: int, port: int | None) -> list[str]:
    words = ["--nodes", str(count), "--node-rank", str(rank), "--master-addr", "127.0.0.1"]
    return [*words, f"master_port={port}"] if port else words


def wait_gone(folder: Path) -> None:
    wait_for("the end of every process", lambda: not processes_of(str(folder)), GONE_S)


def trains(folder: Path) -> bool:
    metrics = folder / "run" / "metrics.jsonl"
    return metrics.exists() and len(metrics.read_text().splitlines()) >= 2


@pytest.mark.slow
@pytest.mark.parametrize(("how", "detail"), in_every_push(ABSENT, "sleep"))
def test_a_rank_that_does_not_come_is_named(run: Run, tmp_path: Path, how: str, detail: str) -> None:
    mark = tmp_path / "moment"
    process = run("devices=2", *misbehave(how, 1, mark))
    wait_for("the moment", lambda: mark.exists() or process.poll() is not None, START_S)
    _, words = process.communicate(timeout=GONE_S)
    wait_gone(tmp_path)
    assert process.returncode == 1, words
    assert " did not reach the all_reduce of the gradients of update 3\n  waited    rank 0, for 5 s" in words
    assert detail in words
    assert words.count("noether: ") == 1, "one message"


@pytest.mark.slow
@pytest.mark.parametrize("killed", in_every_push({"of-rank-0": 0, "of-rank-1": 1}, "of-rank-0"))
def test_a_launcher_killed_with_sigkill_ends_the_run_on_the_other_node(run: Run, tmp_path: Path, killed: int) -> None:
    port = free_port()
    processes = [run(*nodes(2, rank, port), *WORDS, *WELL) for rank in (0, 1)]
    wait_for("the first updates", lambda: trains(tmp_path) or processes[0].poll() is not None, START_S)
    processes[killed].kill()
    other = processes[1 - killed]
    _, words = other.communicate(timeout=GONE_S)
    wait_gone(tmp_path)
    assert other.returncode not in (0, 75), words
    assert f"rank {killed} on " in words
    assert " lost its connection (the process that started it has probably died)" in words


@pytest.mark.slow
def test_a_port_that_cannot_be_had_is_replaced_by_a_published_one(run: Run, tmp_path: Path) -> None:
    """A program that accepts connections but never answers holds the default port 29500."""
    try:
        mute = socket.create_server(("", 29500))
    except OSError:
        pytest.skip("port 29500 is taken on this machine")
    with mute:
        processes = [run(*nodes(2, rank, None), "trainer.max_updates=3") for rank in (0, 1)]
        said = [process.communicate(timeout=START_S)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    assert "port 29500 on 127.0.0.1 is taken by another program; the ranks meet at port " in said[0]
    assert not (tmp_path / "rendezvous").exists(), "the published port must be removed once all ranks have met"


@pytest.mark.slow
def test_an_asked_for_port_that_is_taken_ends_every_host(run: Run) -> None:
    """A web server holds the port, so rank 0's host must inform the other host through another port."""
    with HTTPServer(("", 0), SimpleHTTPRequestHandler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        port = server.server_port
        hosts = [run(*nodes(2, rank, port), "trainer.max_updates=3") for rank in (0, 1)]
        said = [process.communicate(timeout=START_S)[1] for process in hosts]
        server.shutdown()
    assert [process.returncode for process in hosts] == [2, 2], said
    assert f"seen      master_port={port}, on 127.0.0.1" in said[0]
    assert "fix       master_port=" in said[0]
    assert f"port {port} is taken by another program" in said[1], said


@pytest.mark.slow
def test_a_signal_ends_a_host_that_waits_for_another(run: Run, tmp_path: Path) -> None:
    """The other host never starts. The signal ends the wait of 600 s, and no message claims that a run was saved."""
    whom = {0: "waits for rank 1 of 2 at 127.0.0.1", 1: "waits for rank 0 at 127.0.0.1"}
    hosts = [run(*nodes(2, rank, free_port()), "distributed.init_timeout_s=600") for rank in whom]
    for rank, host in enumerate(hosts):
        read_until(host, whom[rank])
    for host, number in zip(hosts, (signal.SIGINT, signal.SIGTERM), strict=True):
        host.send_signal(number)
    said = [host.communicate(timeout=GONE_S)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [130, 75], said
    for words, name in zip(said, ("SIGINT", "SIGTERM"), strict=True):
        assert f"was interrupted by {name}; nothing was trained" in words
    wait_gone(tmp_path)


@pytest.mark.slow
def test_a_host_that_does_not_come_in_time_is_named_on_every_host(run: Run, tmp_path: Path) -> None:
    port, short = free_port(), ("distributed.init_timeout_s=5", "trainer.effective_batch_size=6")
    hosts = [run(*nodes(3, rank, port), *short) for rank in (0, 1)]
    said = [host.communicate(timeout=START_S)[1] for host in hosts]
    assert [host.returncode for host in hosts] == [69, 69], said
    for words in said:
        assert "2 of 3 did not join within 5 s" in words
        assert words.count("did not join") == 1, "one message"
    assert "rank 1 ends with the run: rank 0 on " in said[1]
    wait_gone(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("rank", "code"), in_every_push({"rank-0": (0, 2), "rank-1": (1, 69)}, "rank-1"))
def test_a_master_whose_name_does_not_resolve_is_said_in_time(run: Run, rank: int, code: int) -> None:
    words = ("--nodes", "2", "--node-rank", str(rank), "--master-addr", "nohost.invalid")
    host = run(*words, "distributed.init_timeout_s=5", "trainer.max_updates=3")
    began = time.monotonic()
    said = host.communicate(timeout=START_S)[1]
    assert host.returncode == code, said
    assert "the master's name nohost.invalid does not resolve" in said
    assert "fix       master_addr=" in said
    assert time.monotonic() - began < GONE_S

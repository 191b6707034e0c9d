"""`noether doctor`, with one rank, with several, and on broken machines; it always ends and gives the reason."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import free_port, run_to_end
from sharing import in_every_push
from torch.distributed import TCPStore

LIMIT_S = 60
"""The promised time limit. The default of --timeout is shorter, because starting the program takes time."""


def by_check(report: dict) -> dict[str, dict]:
    return {finding["check"]: finding for finding in reversed(report["findings"])}


def ranks_environ(rank: int, world: int, port: int, master: str = "127.0.0.1") -> dict[str, str]:
    """Return the variables that a launcher sets for one rank."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world, "LOCAL_WORLD_SIZE": world, "MASTER_PORT": port}
    return {"MASTER_ADDR": master} | {name: str(number) for name, number in numbers.items()}


@pytest.mark.slow
def test_alone_on_a_machine_that_works(noether, tmp_path: Path) -> None:
    done = noether("doctor", "--json", "accelerator=cpu", f"output_path={tmp_path}/runs", timeout=LIMIT_S)
    report = json.loads(done.out)
    found = by_check(report)
    assert (report["launcher"], report["world_size"]) == ("local", 1)
    assert [found[name]["level"] for name in ("launch", "torch", "store", "gloo", "bandwidth", "output")] == ["ok"] * 6
    assert "MB/s" in found["bandwidth"]["seen"]
    assert found["nccl"]["level"] in ("ok", "skipped")
    assert done.code == any(finding["level"] == "error" for finding in report["findings"])
    assert list(tmp_path.iterdir()) == [], "the doctor must leave no files behind"


@pytest.mark.slow
def test_a_broken_torch_is_one_finding_among_others(noether, tmp_path: Path) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('libtorch.so: cannot open')\n")
    path = f"{tmp_path}{os.pathsep}{REPOSITORY}"
    done = noether("doctor", "accelerator=cpu", f"output_path={tmp_path}/runs", timeout=LIMIT_S, PYTHONPATH=path)
    assert done.code == 1
    lines = done.out.splitlines()
    assert re.match(r"error +torch +import torch: ImportError: libtorch.so: cannot open", lines[1]), done.out
    assert re.search(rf"warning +imports +torch from {re.escape(str(tmp_path))}", done.out)
    assert re.search(r"skipped +gloo +torch cannot be imported", done.out)
    assert re.search(r"^ok +output ", done.out, re.MULTILINE)
    assert re.match(r"1 error, ", lines[-1])


def examined(environ, folder: Path, *words: str, store: int = 0) -> list[tuple[str, str]]:
    """Run the doctor as the ranks of one job, the last rank first; return each rank's stdout and stderr.

    words: an extra argument for each rank. store: the port of a store that already runs, like torchrun's; 0: none.
    """
    port = store or free_port()
    elastic = {"TORCHELASTIC_RUN_ID": "a job", **({"TORCHELASTIC_USE_AGENT_STORE": "True"} if store else {})}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "noether", "doctor", "--json", "accelerator=cpu", f"output_path={folder}", word],
            cwd=REPOSITORY,
            env={**environ, **ranks_environ(rank, len(words), port), **elastic},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank, word in reversed(list(enumerate(words)))
    ]
    return [rank.communicate(timeout=LIMIT_S) for rank in reversed(ranks)]


@pytest.mark.slow
def test_ranks_take_part_and_rank_0_alone_speaks(environ, tmp_path: Path) -> None:
    said = examined(environ, tmp_path / "runs", "num_workers=0", "num_workers=0", "dataset_root=/elsewhere")
    assert said[1] == said[2] == ("", "")
    report = json.loads(said[0][0])
    found = by_check(report)
    for name in ("peers", "store", "gloo", "bandwidth", "host names", "agreement"):
        assert found[name]["level"] == "ok", found[name]
    assert found["peers"]["seen"].startswith("all 3 ranks")
    # Equal findings of several ranks are merged. Those on the output folder may differ, because they state free space.
    looked = [rank for finding in report["findings"] if finding["check"] == "output" for rank in finding["ranks"]]
    assert sorted(looked) == [0, 1, 2]


@pytest.mark.slow
def test_a_rank_that_a_run_would_refuse_is_named_with_what_differs_at_once(environ, tmp_path: Path) -> None:
    first, second = examined(environ, tmp_path / "runs", "seed=3", "seed=4")
    report = json.loads(first[0])
    found = by_check(report)
    assert report["seconds"] < 15, "no time limit was waited for"
    for words in ("settings and versions of rank 0", "seed=4"):
        assert words in found["agreement"]["seen"]
        assert words in second[1]
    assert (found["agreement"]["ranks"], found["agreement"]["expected"]) == ([1], "seed=3, as on rank 0's host")
    assert (found["peers"]["level"], found["store"]["seen"]) == ("ok", "the ranks have not met")


UNREADABLE = {"rank-0": (0, False), "rank-1": (1, False), "torchrun-rank-0": (0, True), "torchrun-rank-1": (1, True)}


@pytest.mark.slow
@pytest.mark.parametrize(("refusing", "served"), in_every_push(UNREADABLE, "rank-0", "rank-1", "torchrun-rank-1"))
def test_a_host_that_cannot_read_its_settings_is_named_by_the_other(environ, tmp_path, refusing: int, served) -> None:
    words = ["seed=3", "seed=3"]
    words[refusing] = "trainer.max_epohcs=3"
    started = time.monotonic()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if served else None
    said = examined(environ, tmp_path / "runs", *words, store=store.port if store is not None else 0)
    assert time.monotonic() - started < 30
    assert said[refusing][0] == ""
    assert "[unknown-key]" in said[refusing][1]
    if refusing == 0:
        assert f"error agreement rank 0 on {socket.gethostname()}: unknown key" in " ".join(said[1][1].split())
        return
    report = json.loads(said[0][0])
    found = by_check(report)
    assert report["seconds"] < 15, "no time limit was waited for"
    assert "unknown key 'trainer.max_epohcs'" in found["agreement"]["seen"]
    assert (found["agreement"]["hosts"], found["agreement"]["ranks"]) == ([socket.gethostname()], [1])
    assert found["agreement"]["fix"] == "trainer.max_epochs=3"
    assert found["peers"]["level"] == "ok"


@pytest.mark.slow
def test_a_host_whose_devices_are_refused_takes_part(environ, tmp_path: Path) -> None:
    report = json.loads(examined(environ, tmp_path / "runs", "num_workers=0", "accelerator=gpu")[0][0])
    found = by_check(report)
    assert report["seconds"] < 30, "no time limit was waited for"
    assert "no GPU is visible" in found["launch"]["seen"]
    assert (found["launch"]["level"], found["launch"]["ranks"]) == ("error", [1])
    assert [found[name]["level"] for name in ("peers", "store", "gloo")] == ["ok"] * 3


@pytest.mark.slow
def test_a_peer_that_never_comes_is_named_in_time(noether) -> None:
    started = time.monotonic()
    words = ("--nodes", "2", "--node-rank", "0", "--master-addr", "127.0.0.1", "--devices", "2")
    done = noether("doctor", "--json", "--timeout", "25", "accelerator=cpu", f"master_port={free_port()}", *words)
    assert time.monotonic() - started < LIMIT_S
    assert done.code == 1
    found = by_check(json.loads(done.out))
    assert found["peers"]["ranks"] == [2, 3]
    assert "ranks 2, 3 did not connect" in found["peers"]["seen"]
    assert "(node 1)" in found["peers"]["seen"]
    assert found["store"] | {"seen": ""} == found["store"] | {"seen": "", "level": "skipped"}
    assert found["torch"]["level"] == "ok", "the host itself must be examined nevertheless"


@pytest.mark.slow
def test_a_rank_that_cannot_reach_rank_0_says_so_itself(noether) -> None:
    started, ranks = time.monotonic(), ranks_environ(1, 2, free_port(), "no-such-host.invalid")
    done = noether("doctor", "--timeout", "25", "accelerator=cpu", **ranks)
    assert time.monotonic() - started < LIMIT_S
    assert (done.code, done.out) == (1, "")
    said = " ".join(done.err.split())
    assert "no-such-host.invalid does not resolve" in said
    assert "master_addr=ADDRESS" in said


@pytest.mark.slow
def test_an_occupied_port_is_named_on_both_sides(noether) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        rank_0 = noether("doctor", "--json", "accelerator=cpu", **ranks_environ(0, 2, port), code=1)
        found = by_check(json.loads(rank_0.out))
        assert f"port {port} is taken by another program" in found["port"]["seen"]
        assert found["port"]["fix"] == "unset MASTER_PORT"
        assert found["store"]["seen"] == "the ranks have not met"
        # This server accepts a connection and never answers.
        rank_1 = noether("doctor", "accelerator=cpu", "--timeout", "20", **ranks_environ(1, 2, port))
        assert f"port {port}: the program there does not answer as noether does" in " ".join(rank_1.err.split())


@pytest.mark.slow
def test_a_refused_launch_does_not_end_the_examination(noether) -> None:
    done = noether("doctor", "--json", "accelerator=cpu", WORLD_SIZE="4")
    found = by_check(json.loads(done.out))
    assert done.code == 1
    assert found["launch"]["level"] == "error"
    assert "WORLD_SIZE=4, no RANK" in found["launch"]["seen"]
    assert found["gloo"]["level"] == "ok"


@pytest.mark.slow
def test_a_refused_process_that_is_not_the_first_says_its_own_problems_alone(noether) -> None:
    done = noether("doctor", "--json", "accelerator=cpu", JOB_COMPLETION_INDEX="1")
    assert (done.code, done.out) == (1, "")
    assert "nothing says how many pods train together" in " ".join(done.err.split())


@pytest.mark.slow
def test_what_hangs_before_any_check_is_ended(environ, tmp_path: Path) -> None:
    """The hang simulates a settings file on a file system that does not respond."""
    script = (
        "import time; from noether.checkpoints import run_settings; from noether.doctor.examine import doctor_here; "
        "run_settings.load_run_config = lambda *words: time.sleep(600); doctor_here((), None, 5, False)"
    )
    started = time.monotonic()
    own = {**environ, "PYTHONPATH": str(REPOSITORY)}
    done = run_to_end([sys.executable, "-c", script], own, cwd=tmp_path, limit_s=LIMIT_S)
    assert time.monotonic() - started < LIMIT_S
    assert done.returncode == 1
    assert "hangs in: the configuration" in done.stdout


ODD = {"--timeout=soon": "takes a number", "--timeout=0": "5 to 3600", "acelerator=cpu": "did you mean 'accelerator'?"}


@pytest.mark.parametrize(("argument", "words"), ODD.items())
def test_a_wrong_request_ends_with_2(argument: str, words: str, noether) -> None:
    done = noether("doctor", argument, code=2)
    assert words in done.err

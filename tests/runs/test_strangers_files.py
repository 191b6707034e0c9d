"""Somebody else replaces files of a run folder by links, pipes, devices and endless files."""

import json
import os
import shutil
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import REPOSITORY

from noether.common.atomic_write import UNFENCED, AppendingFile, DiskRefusal, write_json, write_whole
from noether.common.console import Console
from noether.common.errors import RequestError
from noether.common.safe_open import NotPlainFile, create_plain, make_folder, open_to_append
from noether.config.compose import read_dumped
from noether.launch.detect.endpoint import PublishedPort
from noether.launch.detect.identity import RunIdentity
from noether.launch.processes.failure import _log_end
from noether.launch.processes.worker import write_to_log
from noether.runs.folder import RunFolder
from noether.runs.lease import read_attempt, take_lease
from noether.runs.logs import log_files
from noether.runs.metrics import Metrics
from noether.runs.overview import run_state
from noether.runs.records import append_row, read_metrics, read_record
from noether.runs.report.run import read_run
from noether.runs.tracking.tensorboard import TensorBoardFile
from noether.watch.watched_run import WatchedRun

RUN = REPOSITORY / "tests" / "physics" / "predict" / "small_runs" / "upt"
FILES = (
    *("config.yaml", "plan.json", "environment.json", "metrics.jsonl", "result.json", "attempt.json", "attempts.jsonl"),
)
MORE = ("stopped.json", "job.json", "evaluation/test.npz", "evaluation/latest.npz", "logs/rank-0.log", "trackers.json")


def endless(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**43)


WAYS: dict[str, Callable[[Path], None]] = {
    "a pipe": os.mkfifo,
    "a link to /dev/zero": lambda path: path.symlink_to("/dev/zero"),
    "a link to a file": lambda path: path.symlink_to("/etc/hostname"),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a folder": Path.mkdir,
    "eight terabytes": endless,
}


def put(way: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    WAYS[way](path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_reads_a_run_folder_passes_over_what_is_no_plain_file(way: str, tmp_path: Path) -> None:
    """The commands status, cancel, report, logs and watch read with these functions."""
    folder = RunFolder(tmp_path / "run")
    shutil.copytree(RUN, folder.path)
    for name in (*FILES, *MORE):
        put(way, folder.path / name)
    assert read_attempt(folder) is None
    assert read_metrics(folder.metrics) == []
    assert read_record(folder.path / "trackers.json") == {}
    assert run_state(folder, {}).state == "lost" or way in ("a link to a file", "eight terabytes")
    assert len(read_run(folder).troubles) >= 5
    assert log_files(folder, None) == ([folder.logs / "rank-0.log"] if way == "eight terabytes" else [])
    if way != "eight terabytes":  # A log of any size is read, but only its end.
        assert _log_end(folder.logs / "rank-0.log") == []
    with pytest.raises(RequestError):
        read_dumped(folder.config)
    watched = WatchedRun(folder)
    assert watched.detail()["update"] is None
    assert watched.line()["update"] is None


def test_a_published_port_is_no_pipe(tmp_path: Path) -> None:
    published = PublishedPort(tmp_path, RunIdentity("multinode", 2))
    put("a pipe", published.path)
    assert published.read() is None


NAMED = {
    "the job's": ("jobs/12.out", "12", 0, True),
    "of an array": ("jobs/12_3.out", "12_3", 0, True),
    "of another job": ("jobs/13.out", "12", 0, False),
    "no output": ("secret", "secret", 0, False),
    "a device's": ("/proc/kmsg", "12", 0, False),
    "no path": ("\0/12.out", "12", 0, False),
    "another user's": ("jobs/12.out", "12", 65534, False),
}


@pytest.mark.parametrize(("output", "job", "owner", "is_shown"), NAMED.values(), ids=NAMED)
def test_a_record_of_a_job_shows_no_file_but_that_job_s_output(output, job, owner, is_shown, tmp_path: Path) -> None:
    folder, named = RunFolder(tmp_path / "run"), tmp_path / output
    write_whole(folder.logs / "rank-0.log", "said")
    if output != "/proc/kmsg":
        with suppress(ValueError):
            write_whole(named, "precious")
    write_json(folder.job, {"job": job, "output": str(named)})
    if owner and os.geteuid():
        pytest.skip("only root can give a file away")
    os.chown(folder.job, owner or -1, -1)
    assert log_files(folder, None) == [named if is_shown else folder.logs / "rank-0.log"]


WRITERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a record": ("result.json", lambda path: write_json(path, {})),
    "a row": ("attempts.jsonl", lambda path: append_row(path, {"a": 1})),
    "a history": ("metrics.jsonl", lambda path: AppendingFile(path).append(b"{}\n")),
    "a rank's log": ("rank-0.log", lambda path: Console(path, speaks=False).say("words")),
    "a rank's output": ("rank-1.log", write_to_log),
    "a new file": ("meta.json", lambda path: create_plain(path).close()),
    "the sign of a cancelled run": ("cancelled", lambda path: os.close(open_to_append(path))),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("way", ["a link to a file", "a pipe", "a dangling link"])
@pytest.mark.parametrize(("name", "write"), WRITERS.values(), ids=WRITERS)
def test_nothing_is_written_through_a_link(name: str, write, way: str, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("precious")
    path = tmp_path / "run" / name
    path.parent.mkdir()
    (os.mkfifo if way == "a pipe" else lambda at: at.symlink_to(mine if "file" in way else tmp_path / "made"))(path)
    with suppress(NotPlainFile):
        write(path)
    assert mine.read_text() == "precious"
    assert not (tmp_path / "made").exists()


def test_the_name_before_the_name_cannot_be_guessed(tmp_path: Path) -> None:
    """Otherwise somebody could put a link at the next temporary name, and the write would follow it."""
    names = {UNFENCED.partial(tmp_path / "report.html").name for _ in range(20)}
    assert len(names) == 20
    assert not any(str(os.getpid()) in name.split(".") for name in names)


def test_a_lease_replaces_a_link_in_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    lease = take_lease(RunFolder(tmp_path / "run"), {})
    (tmp_path / "mine").write_text("precious")
    lease.partial(lease.folder.report).symlink_to(tmp_path / "mine")
    write_whole(lease.folder.report, "page", lease)
    assert (tmp_path / "mine").read_text() == "precious"
    assert lease.folder.report.read_text() == "page"


MAKERS: dict[str, Callable[[Path], object]] = {
    "test.json": lambda link: write_json(link / "test.json", {}),
    "rows": lambda link: AppendingFile(link / "rows").append(b"{}\n"),
    "logs": lambda link: RunFolder(link).create(),
    "inner": lambda link: make_folder(link / "inner"),
    f"events.out.tfevents.9.{socket.gethostname()}": lambda link: TensorBoardFile(link, 0, Metrics()),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a link away")
@pytest.mark.parametrize("owner", [0, 65534], ids=["own", "a stranger's"])
@pytest.mark.parametrize(("made", "make"), MAKERS.items(), ids=MAKERS)
def test_a_folder_that_is_a_strangers_link_is_not_written_to(owner, made, make, tmp_path: Path, monkeypatch) -> None:
    """A link may replace a folder in a run, or a new run in a folder that several users share."""
    monkeypatch.setattr(time, "time", lambda: 9.0)
    link, elsewhere = tmp_path / "link", tmp_path / "elsewhere"
    elsewhere.mkdir()
    link.symlink_to(elsewhere)
    os.lchown(link, owner, owner)
    with suppress(NotPlainFile, DiskRefusal):
        make(link)
    assert [path.name for path in elsewhere.iterdir()] == ([] if owner else [made])


@pytest.mark.timeout(100)
def test_the_commands_end_at_a_folder_of_pipes(noether, tmp_path: Path) -> None:
    """Regression: if a run folder contained a pipe, `noether status` waited forever for every user."""
    for name in ("sound", strange := "\x1b[31mstrange"):
        shutil.copytree(RUN, tmp_path / "runs" / name)
    for name in (*FILES[1:], *MORE, "checkpoints/update-000000002/meta.json"):
        put("a pipe", tmp_path / "runs" / strange / name)
    told = noether("status", "--output-path", str(tmp_path / "runs"), "--json", timeout=30)
    assert [Path(run["run"]).name for run in json.loads(told.out)["runs"]] == [strange, "sound"]
    for command, code in {"report": 0, "checkpoints": 0, "evaluate": 2, "logs": 2, "cancel": 2}.items():
        done = noether(command, str(tmp_path / "runs" / strange), timeout=30)
        assert (done.code, "Traceback" in done.err) == (code, False), (command, done.err)
        assert "\x1b" not in done.out + done.err, command

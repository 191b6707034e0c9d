"""On a terminal of 60 columns a run shows the same facts as on one of 160; no figure is cut."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from rich.console import Console

from noether.config.compose import load_config
from noether.planning.plan import plan_run, render_plan

WIDTHS = (60, 160)


def on_terminal(columns: int, command: list[str], environ: dict[str, str]) -> str:
    """Runs a command on a terminal of this width; returns what it showed, without colours and cursor movements."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.chdir(REPOSITORY)
        os.execve(command[0], command, environ)
    said = b""
    try:
        while part := os.read(terminal, 65536):
            said += part
    except OSError:  # Linux says so when the last process has left.
        pass
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, said.decode(errors="replace")
    moved = re.sub(r"\x1b\[[0-9;?]*[A-HJK]", "\n", said.decode()).replace("\r", "\n")
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", moved)


@pytest.fixture(scope="module")
def shown(environ: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> dict[int, tuple[str, str]]:
    """What a run shows at each width, and its log."""
    found = {}
    environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}
    for columns in WIDTHS:
        output = tmp_path_factory.mktemp("runs")
        words = ["--hp", str(TINY), f"output_path={output}", "run_id=r", "trainer.log_every=1 updates"]
        command = [sys.executable, "-m", "noether", "train", *words]
        text = on_terminal(columns, command, {**environ, "TERM": "xterm"})
        found[columns] = text, (output / "r" / "logs" / "rank-0.log").read_text()
    return found


FACTS = {
    "rank": r"\b0 +\S+ +0 +cpu\b",
    "host-of-the-rank": re.escape(os.uname().nodename),
    "batch": r"samples per update",
    "loss": r"loss \d+\.\d{4}\b",
    "learning-rate": r"lr \d\.\de[+-]\d\d\b",
    "pace": r"\b\d+\.\d samples/s",
    "memory": r"\b\d+ MiB",
    "update": r"\b8/8\b",
    "epoch": r"epoch \d/\d",
    "elapsed": r"\b\d+:\d\d:\d\d elapsed",
    "left": r"(\d+:\d\d:\d\d|–:––) left",
    "model": r"parameters, float32",
    "time": r"time \d+\.\d s:",
    "run": r"run +/",
}


@pytest.mark.slow
@pytest.mark.parametrize("columns", WIDTHS)
@pytest.mark.parametrize("fact", FACTS.values(), ids=FACTS)
def test_a_fact_is_shown_at_every_width(fact: str, columns: int, shown) -> None:
    assert re.search(fact, shown[columns][0]), shown[columns][0]


@pytest.mark.slow
@pytest.mark.parametrize("columns", WIDTHS)
def test_nothing_is_cut(columns: int, shown) -> None:
    text, log = shown[columns]
    assert "…" not in text
    assert [line for line in text.splitlines() if len(line) > columns] == []
    words = set(text.split())
    # Of the log, which is 120 columns wide: each evaluation, and each figure at the end.
    lines = [line for line in log.splitlines() if "validation" in line]
    lines += [line for line in log[log.index("samples of the test split") :].splitlines() if "evaluated in" not in line]
    assert len(lines) > 8
    joined = "".join(text.split())
    for word in {word for line in lines for word in line.split() if re.search(r"\d", word)}:
        assert word in words or word in joined, word


def test_a_long_name_of_a_host_is_folded(tmp_path: Path) -> None:
    plan = plan_run(load_config(["accelerator=cpu"]))
    name = "a-node-of-a-cluster-with-a-name-of-more-than-sixty-characters.example.org"
    placed = replace(plan, placement=replace(plan.placement, nodes=(name,)))
    console = Console(width=60, record=True, file=(tmp_path / "said").open("w"))
    console.print(*render_plan(placed), sep="\n")
    assert "…" not in (said := console.export_text())
    assert "sixty" in said

"""On a terminal of 60 columns a run shows what its log holds: no line is wider, and no figure is cut."""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY

COLUMNS = 60


def on_terminal(command: list[str], environ: dict[str, str]) -> str:
    """Runs a command on a narrow terminal; returns what it showed, without colours and cursor movements."""
    pid, terminal = pty.fork()
    if pid == 0:
        fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
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


@pytest.mark.slow
def test_nothing_is_cut(environ: dict[str, str], tmp_path: Path) -> None:
    environ = {name: value for name, value in environ.items() if name not in ("COLUMNS", "LINES")}
    words = ["--hp", str(TINY), f"output_path={tmp_path}", "run_id=r", "trainer.log_every=1 updates"]
    text = on_terminal([sys.executable, "-m", "noether", "train", *words], {**environ, "TERM": "xterm"})
    log = (tmp_path / "r" / "logs" / "rank-0.log").read_text()
    assert "…" not in text
    assert [line for line in text.splitlines() if len(line) > COLUMNS] == []
    # Of the log, which is 120 columns wide: each evaluation, and each figure at the end.
    lines = [line for line in log.splitlines() if "validation" in line]
    lines += [line for line in log[log.index("samples of the test split") :].splitlines() if "evaluated in" not in line]
    assert len(lines) > 8
    joined = "".join(text.split())
    for word in {word for line in lines for word in line.split() if re.search(r"\d", word)}:
        assert word in joined, word

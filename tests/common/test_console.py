"""The console removes control characters from all text, and survives a closed pipe and a failing disk."""

import errno
import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Table
from rich.text import Text

from noether.common.console import Console
from noether.common.sanitize import shown_log, shown_name, shown_text
from noether.runs.folder import RunFolder
from noether.runs.overview import run_state, status_table

EVIL = "\x1b]0;owned\x07\x1b[2J[red]\u202ecba\x9b31m"


@pytest.mark.parametrize(
    ("text", "name", "several"),
    [
        ("cars é 車", "cars é 車", "cars é 車"),
        ("a\x1b[2Jb", "a\\x1b[2Jb", "a\\x1b[2Jb"),
        ("a\nb\tc", "a\\nb\\tc", "a\nb\tc"),
        ("a\rb", "a\\rb", "a\\rb"),
        ("\x9b31m\x7f\x00", "\\x9b31m\\x7f\\x00", "\\x9b31m\\x7f\\x00"),
        ("\u202ecba\u2028", "\\u202ecba\\u2028", "\\u202ecba\\u2028"),
        (os.fsdecode(b"caf\xe9"), "caf\\udce9", "caf\\udce9"),
    ],
    ids=["plain", "escape", "lines", "return", "C1 and NUL", "direction and line separator", "not UTF-8"],
)
def test_control_characters_are_escaped(text: str, name: str, several: str) -> None:
    assert (shown_name(text), shown_text(text)) == (name, several)


def test_a_log_loses_its_colours_and_keeps_its_lines() -> None:
    assert shown_log("\x1b[31mred\x1b[0m 10%\r20%\r\nend\x07\n") == "red 10%\n20%\nend\\x07\n"


@pytest.mark.parametrize("form", ["text", "Text", "table", "warning"])
def test_the_console_shows_no_control_characters(form: str) -> None:
    stream = io.StringIO()
    console = Console(None, speaks=True, stream=stream)
    table = Table("run")
    table.add_row(EVIL)
    {"text": console.say, "Text": lambda one: console.say(Text(one)), "warning": console.warn}.get(
        form, lambda one: console.say(table)
    )(EVIL)
    assert not set(stream.getvalue()) & set("\x1b\x07\x9b\u202e")
    assert "owned" in stream.getvalue()


def test_a_run_of_any_name_is_one_row(tmp_path: Path) -> None:
    (tmp_path / f"{EVIL}\nroot").mkdir()
    stream = io.StringIO()
    Console(None, speaks=True, stream=stream).say(status_table([run_state(RunFolder(tmp_path / f"{EVIL}\nroot"), {})]))
    assert len(stream.getvalue().splitlines()) == 2
    assert "\x1b" not in stream.getvalue()


SPEAKS = """
from noether.common.console import Console
console = Console(None, speaks=True)
for line in range(20000):
    console.say(str(line))
print("after it")
"""


def test_a_reader_that_leaves_ends_nothing() -> None:
    """In `noether train | head`, rich would raise SystemExit, and the run would end without saving."""
    process = subprocess.Popen([sys.executable, "-c", SPEAKS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOSPC, errno.EBUSY, errno.EIO], ids=errno.errorcode.get)
def test_words_that_no_disk_takes_are_lost(number, tmp_path, monkeypatch) -> None:
    console = Console(tmp_path / "log", speaks=False)

    def refuse(*words: object, **options: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(console._log, "print", refuse)
    console.say("hello")
    console.only_log("hello")

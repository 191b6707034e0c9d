"""A terminal whose reader leaves, and a log that no disk takes."""

import errno
import subprocess
import sys

import pytest

from noether.common.console import Console

SPEAKS = """
from noether.common.console import Console
console = Console(None, speaks=True)
for line in range(20000):
    console.say(str(line))
print("after it")
"""


def test_a_reader_that_leaves_ends_nothing() -> None:
    """`noether train | head`: rich would leave by SystemExit, and nothing would be saved."""
    process = subprocess.Popen([sys.executable, "-c", SPEAKS], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"0\n"
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr is not None
    assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [errno.ESTALE, errno.ENOSPC, errno.EBUSY, errno.EIO], ids=errno.errorcode.get)
def test_words_that_no_disk_takes_are_lost(number, tmp_path, monkeypatch) -> None:
    console = Console(tmp_path / "log", speaks=False)

    def refuse(*words: object, **options: object) -> None:
        raise OSError(number, "refused")

    monkeypatch.setattr(console._log, "print", refuse)
    console.say("hello")
    console.only_log("hello")

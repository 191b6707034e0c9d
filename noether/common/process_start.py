"""Gives this process what every program stands on: standard streams, a working directory, UTF-8."""

import codecs
import locale
import os
import sys

from noether.common.errors import RequestError

UTF8_MODE = "PYTHONUTF8"


def open_closed_streams() -> None:
    """Send a standard stream that was closed (`>&-`) to nowhere: else the next file opened would get its output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number, which is this one, and for the processes that this one starts too.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def check_working_directory() -> None:
    """Refuse to start in a folder that has been removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RequestError(
            "working-directory-removed",
            "the working directory has been removed",
            seen=os.environ.get("PWD", "a folder that is gone"),
            expected="a folder that exists",
            fix="cd ~",
        ) from None


def use_utf8() -> None:
    """Restart this program in Python's UTF-8 mode where the locale's encoding is another one (LC_ALL=C, say).

    Files are UTF-8 whatever the locale. A stream that was asked to be ASCII (PYTHONIOENCODING) stays so, and shows
    what it cannot write as ?; the processes that this one starts do the same.
    """
    if not _is_utf8(locale.getpreferredencoding(False)) and os.environ.get(UTF8_MODE) != "1":
        os.environ[UTF8_MODE] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    asked, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    if asked and not errors and not _is_utf8(asked):
        os.environ["PYTHONIOENCODING"] = f"{asked}:replace"
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and not _is_utf8(stream.encoding or "utf-8"):
            stream.reconfigure(errors="replace")


def _is_utf8(name: str) -> bool:
    try:
        return codecs.lookup(name).name == "utf-8"
    except LookupError:
        return False

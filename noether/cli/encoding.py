"""Makes every character printable and every file UTF-8, whatever the locale."""

import codecs
import locale
import os
import sys

UTF8_MODE = "PYTHONUTF8"


def use_utf8() -> None:
    """Restarts this program in Python's UTF-8 mode where the locale's encoding is another one (LC_ALL=C, say).

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

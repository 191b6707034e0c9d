"""What VTK's reader of Tecplot's text leaves to its caller: whether a file is one, and the times of its zones."""

import mmap
import re
from pathlib import Path

TECPLOT = (".plt", ".tec", ".dat")
FIRST_WORDS = (b"TITLE", b"FILETYPE", b"VARIABLES", b"ZONE")
ZONE_OR_TIME = re.compile(rb"^[ \t]*ZONE\b|\bSOLUTIONTIME[ \t]*=[ \t]*([-+.\dED]+)", re.MULTILINE | re.IGNORECASE)


def begins_as_tecplot(head: bytes) -> bool:
    """Whether the first line of a file, comments aside, is one of Tecplot's text."""
    lines = (line.strip().upper() for line in head.splitlines())
    return next((line for line in lines if line and not line.startswith(b"#")), b"").startswith(FIRST_WORDS)


def times_of_zones(path: Path) -> list[float | None]:
    """Returns the time of each zone of a file, None where a zone has none. ValueError: a time is not a number."""
    times: list[float | None] = []
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        for found in ZONE_OR_TIME.finditer(text):
            if found[1] is None:
                times.append(None)
            elif times:
                times[-1] = float(found[1].upper().replace(b"D", b"E"))
    return times

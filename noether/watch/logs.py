"""The logs of a run's ranks: their ends, read on from where a page has read. No torch here."""

import codecs
import os
from pathlib import Path
from typing import Any

from noether.common.shown import shown_log
from noether.runs.folder import RunFolder
from noether.watch.inside import opened_inside

TAIL = 2**16
"""Bytes of a log that a page begins with, and the most it is given at once."""


def log_part(folder: RunFolder, path: Path, start: int | None) -> dict[str, Any]:
    """Returns what stands in a log from `start` on: `text`, `from` and `next`, in bytes.

    Without a start, or where the file is shorter than it or has grown by more than TAIL since, the text is the file's
    end, from the beginning of a line on. A character that is not whole yet is left for the next time.

    Raises:
        OSError: it cannot be read.
    """
    with opened_inside(folder.path, path) as file:
        size = os.fstat(file.fileno()).st_size
        begin = start if start is not None and size - TAIL <= start <= size else max(0, size - TAIL)
        file.seek(begin)
        content = file.read(TAIL)
    if begin and begin != start:
        cut = content.find(b"\n") + 1
        begin, content = begin + cut, content[cut:]
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(content)
    unfinished = len(decoder.getstate()[0])
    return {"text": shown_log(text), "from": begin, "next": begin + len(content) - unfinished}

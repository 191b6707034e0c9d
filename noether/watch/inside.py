"""Opens a file of a run only if it really is inside the run's folder, and reads parts of logs. Does not import torch.

A run may come from another user, so a link in its folder, or a folder that is a link, must not expose other files.
"""

import codecs
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from noether.common.errors import RequestError
from noether.common.safe_open import NotPlainFile, is_plain, open_plain
from noether.common.sanitize import shown_log
from noether.config.layers import read_settings
from noether.config.section import flat
from noether.config.yaml_reader import RunYaml
from noether.runs.folder import RunFolder

T = TypeVar("T")


@contextmanager
def opened_inside(root: Path, path: Path) -> Iterator[BinaryIO]:
    """Open a plain file inside `root` for reading.

    OSError: the file is missing, unreadable, a link, a pipe, a device, or outside `root`.
    """
    with open_plain(path) as file:
        if not _lies_in(root, path):
            raise NotPlainFile(f"{path} is not a file of the run")
        yield file


def is_inside(root: Path, path: Path) -> bool:
    """Return whether a path is a plain file inside `root` and not a link."""
    return is_plain(path) and _lies_in(root, path)


def changed(path: Path) -> float | None:
    """Return the time at which a file was last written, in seconds since the epoch; None if it cannot be read."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


class KeptReadings:
    """A cache for the contents of a run's files. A file is read again only after it has changed."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._kept: dict[Path, tuple[tuple[int, int, int], Any]] = {}

    def of(self, path: Path, read: Callable[[Path], T], empty: T) -> T:
        """Return `read(path)`, or `empty` if the path is not a plain file of the run, or cannot be read."""
        if not is_inside(self._root, path):
            return empty
        try:
            status = path.stat()
            signature = (status.st_ino, status.st_size, status.st_mtime_ns)
            if path not in self._kept or self._kept[path][0] != signature:
                self._kept[path] = (signature, read(path))
        except OSError:
            return empty
        found: T = self._kept[path][1]
        return found


def _lies_in(root: Path, path: Path) -> bool:
    return path.resolve().is_relative_to(root.resolve())


TAIL = 2**16
"""The maximum number of bytes of a log in one answer; the first answer is the end of the log."""


def log_part(folder: RunFolder, path: Path, start: int | None) -> dict[str, Any]:
    """Return a log's `text` from byte `start` on, with the byte offsets of its beginning (`from`) and end (`next`).

    If `start` is None, beyond the file's end, or more than TAIL bytes before the end, return the end of the file from
    the beginning of a line. The next call returns a last character that is still incomplete.

    OSError: the log cannot be read.
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


OWN = ("run_id", "output_path", "resume")
"""The settings that differ between any two runs, because they identify a run; the page does not compare them."""


def flat_settings(root: Path, path: Path) -> dict[str, str]:
    """Return {dotted name: value as text} of the settings in a config.yaml; empty if the file cannot be read."""

    def read(path: Path, most: int) -> bytes:
        with opened_inside(root, path) as file:
            return file.read(most + 1)

    try:
        settings, _ = read_settings(path, read, RunYaml)
    except RequestError:
        return {}
    return {name: _text(value) for name, value in flat(settings)}


def _text(value: Any, deepest: int = 3) -> str:
    """Return the value of a setting as in YAML, with at most `deepest` levels of nested lists."""
    if isinstance(value, (list, tuple)) and deepest:
        return "[" + ", ".join(_text(item, deepest - 1) for item in value[:100]) + "]"
    if isinstance(value, (Mapping, list, tuple)):
        return "{}" if not value else "…"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)[:2000]


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """Return {setting: each run's value} of the settings in which runs differ; None for a run without the setting."""
    return {name: values for name, values in side_by_side(settings).items() if name not in OWN and len(set(values)) > 1}


def side_by_side(of_each: Sequence[Mapping[str, T]]) -> dict[str, list[T | None]]:
    """Return {name: each run's value} of the settings or metrics of several runs; None for a run without a value."""
    names = dict.fromkeys(name for one in of_each for name in one)
    return {name: [one.get(name) for one in of_each] for name in names}

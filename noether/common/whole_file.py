"""Files that readers see whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from noether.common.strict_json import strict_json


def write_json(path: Path, content: Any) -> None:
    """Writes JSON as `write_whole` does; what is not a number is null."""
    write_whole(path, strict_json(content, indent=2) + "\n")


def write_whole(path: Path, text: str) -> None:
    """Writes a text as `written_whole` does."""
    with written_whole(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Gives the name to write a file under, so that readers see the old one or the new one, never half of it.

    Makes the file's folder.

    Raises:
        OSError: where the disk refuses; the old file is as it was, and nothing is left beside it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()  # On a full disk its bytes are what others wait for.
        raise

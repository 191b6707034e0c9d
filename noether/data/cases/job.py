"""A case to prepare, whatever reads it: meshes by a map, or a data set's own files."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

from noether.errors import RequestError


class PreparationJob(Protocol):
    """One case, and the store that it belongs to."""

    @property
    def case(self) -> str:
        """The case's name."""

    @property
    def out(self) -> Path:
        """The store's folder."""

    @property
    def mark(self) -> str:
        """Changes whenever the case must be made again."""

    def problems(self) -> Iterator[RequestError]:
        """Yields what can be known to be wrong before the files are read."""

    def make(self) -> dict[str, Any]:
        """Makes the case and returns what its `case.json` says. RequestError: a file is broken or does not fit."""

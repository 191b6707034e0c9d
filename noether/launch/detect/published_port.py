"""Publishes rank 0's port in a folder that all hosts see, for when the port that all ranks derive is taken."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from noether.common.plain_file import read_plain
from noether.common.whole_file import write_json
from noether.launch.detect.identity import RunIdentity


@dataclass(frozen=True)
class PublishedPort:
    """The file `FOLDER/rendezvous/IDENTITY.json` of a run, which exists from rank 0's start until all have joined."""

    folder: Path
    identity: RunIdentity

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self.folder / "rendezvous" / f"{self.identity.digest}.json"

    def write(self, host: str, port: int) -> None:
        """Writes where rank 0 listens. The file appears all at once, so readers never see part of it.

        Raises:
            OSError: the folder cannot be written.
        """
        write_json(self.path, {"host": host, "port": port, "identity": str(self.identity)})

    def read(self) -> tuple[str, int] | None:
        """Returns the host and the port, or None if nothing is published."""
        try:
            # List the folder first: a network file system may cache for a while that a file did not exist.
            os.listdir(self.path.parent)
            content = json.loads(read_plain(self.path))
            return str(content["host"]), int(content["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Removes the file, and the folder if it is then empty."""
        with contextlib.suppress(OSError):
            self.path.unlink()
            self.path.parent.rmdir()

"""A port that rank 0's launcher writes into a folder that all hosts see, when the one that all derive is taken."""

import contextlib
import json
import os
from dataclasses import dataclass
from pathlib import Path

from noether.environments.identity import RunIdentity


@dataclass(frozen=True)
class PublishedPort:
    """The file of one run: `FOLDER/rendezvous/IDENTITY.json`, there from the start of rank 0 until all have joined."""

    folder: Path
    identity: RunIdentity

    @property
    def path(self) -> Path:
        """The file."""
        return self.folder / "rendezvous" / f"{self.identity.digest}.json"

    def write(self, host: str, port: int) -> None:
        """Publishes where rank 0 listens; readers see all of it or nothing.

        Raises:
            OSError: the folder cannot be written.
        """
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(f".{os.getpid()}")
        partial.write_text(json.dumps({"host": host, "port": port, "identity": str(self.identity)}) + "\n")
        partial.replace(self.path)

    def read(self) -> tuple[str, int] | None:
        """Returns host and port, or None where nothing is published."""
        try:
            # Listed first: a network file system may remember for a while that a file was not there.
            os.listdir(self.path.parent)
            content = json.loads(self.path.read_text())
            return str(content["host"]), int(content["port"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def remove(self) -> None:
        """Takes the file away, and the folder with the last one."""
        with contextlib.suppress(OSError):
            self.path.unlink()
            self.path.parent.rmdir()

"""A file that is known again as the one that was verified, so that a large one is read once on each host."""

from dataclasses import dataclass
from pathlib import Path

from noether.common.processes import boot_id


@dataclass(frozen=True)
class StampedFile:
    """A file, and what changes whenever its content does.

    stamp: the machine since its last start, file system, inode, size, and times of the last changes. The kernel sets
        the last one (ctime) at each write and each replacement, and no program can set it back. On another host the
        stamp never fits: what was verified there tells nothing of a copy here.
    """

    path: Path
    stamp: tuple[str | int, ...]

    def is_unchanged(self) -> bool:
        """Whether the file is still the one that was stamped; not where it cannot be looked at."""
        try:
            return stamped(self.path) == self
        except OSError:
            return False


def stamped(path: Path) -> StampedFile:
    """Returns a file with its stamp as it is now. OSError: there is none."""
    about = path.stat()
    times = about.st_mtime_ns, about.st_ctime_ns
    return StampedFile(path, (boot_id(), about.st_dev, about.st_ino, about.st_size, *times))

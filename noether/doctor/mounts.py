"""Finds the file system of a folder, and whether it is on the network."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import PurePosixPath

NETWORK_TYPES = {
    "9p", "afs", "beegfs", "ceph", "cifs", "cvmfs2", "gcsfuse", "glusterfs", "gpfs", "juicefs", "lustre",
    "ncpfs", "nfs", "nfs4", "orangefs", "panfs", "pvfs2", "s3fs", "smb3", "smbfs", "sshfs", "virtiofs",
    "wekafs",
}  # fmt: skip
"""Types as mount(8) names them; those in user space have "fuse." before."""

_LINE = re.compile(r"(?:[^ ]* ){4}([^ ]*).*? - ([^ ]*) ([^ ]*)")


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo: the mount point, and the type and source of the file system."""

    point: str
    kind: str
    source: str

    @property
    def on_network(self) -> bool:
        """Whether the files are on another machine, so that locks are slow and any call may hang."""
        return self.kind.removeprefix("fuse.") in NETWORK_TYPES


def read_mounts(text: str) -> list[Mount]:
    """Parses /proc/self/mountinfo (proc(5)): optional fields end at a single dash, spaces are written \\040."""
    return [Mount(*map(_unescaped, found.groups())) for found in map(_LINE.match, text.splitlines()) if found]


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Returns the mount that an absolute path is on: the longest mount point above it; of equal ones, the last."""
    above = [mount for mount in mounts if PurePosixPath(path).is_relative_to(mount.point)]
    return max(reversed(above), key=lambda mount: len(PurePosixPath(mount.point).parts), default=None)


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)

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
    mounts = []
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if len(fields) > 4 and len(rest) > 1:
            mounts.append(Mount(_unescaped(fields[4]), rest[0], _unescaped(rest[1])))
    return mounts


def mount_of(path: str, mounts: Iterable[Mount]) -> Mount | None:
    """Returns the mount that an absolute path is on: the longest mount point above it; of equal ones, the last."""
    parts, best = PurePosixPath(path).parts, None
    for mount in mounts:
        point = PurePosixPath(mount.point).parts
        if parts[: len(point)] == point and (best is None or len(point) >= len(PurePosixPath(best.point).parts)):
            best = mount
    return best


def _unescaped(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)

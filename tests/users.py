"""Run as real users of one group, if started as root, so that the kernel decides what they may read and write."""

import os
import sys
import tempfile
from pathlib import Path

USERS, GROUP = (61001, 61002), 61000
"""The ids of two users and their common group, without names. Each user is also alone in a group of the same id."""
_OPENED = "NOETHER_TEST_MOUNTS_OPENED"


def become(user: int, mask: int) -> None:
    """Make this process run as the user `user`, with the file mask `mask` and without any rights of root."""
    os.setgroups([GROUP])
    os.setgid(user)
    os.setuid(user)
    os.umask(mask)
    tempfile.tempdir = None
    sys.dont_write_bytecode = True


def in_open_mounts(*needed: Path) -> None:
    """Restart this program in its own mount namespace, in which every user can reach Python and `needed`.

    These folders may be in root's home, which is closed to other users. An overlay with open permissions is mounted
    over it.
    """
    used = (*needed, Path(sys.prefix), Path(os.path.realpath(sys.executable)))
    closed = [str(folder) for path in used for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001]
    if os.geteuid():
        sys.exit("only root can become other users")
    if not closed or _OPENED in os.environ:
        return
    view = tempfile.mkdtemp()
    os.chmod(view, 0o755)
    script = f'mount -t overlay noether -o "lowerdir={view}:$0" "$0" && exec "$@"'
    again = [closed[0], sys.executable, *sys.orig_argv[1:]]
    os.environ[_OPENED] = view
    os.execvp("unshare", ["unshare", "--mount", "sh", "-c", script, *again])

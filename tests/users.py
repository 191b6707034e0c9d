"""Real users of a group, whom root becomes: what they may read and write is the kernel's answer."""

import os
import sys
import tempfile
from pathlib import Path

USERS, GROUP = (61001, 61002), 61000
"""Numbers that nobody has an entry for; each user is also the only one of a group of the same number."""
_OPENED = "NOETHER_TEST_MOUNTS_OPENED"


def become(user: int, mask: int) -> None:
    """This process is the user's from now on, and has nothing of root left."""
    os.setgroups([GROUP])
    os.setgid(user)
    os.setuid(user)
    os.umask(mask)
    tempfile.tempdir = None
    sys.dont_write_bytecode = True


def in_open_mounts(*needed: Path) -> None:
    """Start this program again in mounts of its own, in which every user can reach Python and `needed`.

    Root's own folder, under which they may lie, is closed to others: over it comes a view of it that is open.
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

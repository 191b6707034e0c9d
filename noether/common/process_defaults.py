"""Sets variables for this process and its children where nobody has: caches, HOME, USER.

They are set here and not by `ENV` in the image: under Apptainer an image's ENV wins over the host's export.
"""

import atexit
import contextlib
import os
import pwd
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from noether.common.errors import RequestError

IMAGE_RECORD = Path("/opt/noether/image.json")
"""Written by the image's build: this program is its entry point."""

# Compilers' and libraries' caches. In a home on NFS they crash jobs of several ranks, and a read-only root has no room.
CACHES = {
    "TRITON_CACHE_DIR": "triton",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
# Python's own search for modules: the host's leaks into an Apptainer container, and from the entry point into its
# children.
_LEAKS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE")


def process_defaults(
    environ: Mapping[str, str], *, in_image: bool, home_is_writable: bool, user: str, own_folder: Callable[[], Path]
) -> dict[str, str | None]:
    """Return what to change in the environment: a value to set, or None to remove the variable.

    Outside of images and jobs the tools' own defaults serve, and nothing changes; `own_folder`, a folder of this node
    that only this user can use, is made where it is needed.
    """
    job = next((environ[name] for name in JOB_VARIABLES if environ.get(name)), "")
    if not in_image and not job:
        return {}
    # One for each user of a node, and none for each job: the next job finds warm caches, and nothing piles up. The
    # tools that fill them let processes share them.
    folder = own_folder()
    changes: dict[str, str | None] = {
        name: str(folder / leaf) for name, leaf in CACHES.items() if not environ.get(name)
    }
    if in_image:
        if not home_is_writable:
            changes["HOME"] = str(folder / "home")
        if not environ.get("USER") and not environ.get("LOGNAME"):
            # getpass.getuser() fails where neither is set and the password file has no entry; torch calls it.
            changes["USER"] = user
        changes.update(dict.fromkeys((name for name in _LEAKS if name in environ), None))
        changes["PYTHONNOUSERSITE"] = "1"
    return changes


def set_process_defaults(environ: os._Environ[str] = os.environ) -> None:
    """Apply `process_defaults` to this process, and make the folders that are named.

    Raises:
        RequestError: where no folder of this machine can be written, or another user's is in the way.
    """
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise _nowhere_to_write(str(error)) from None
    changes = process_defaults(
        environ,
        in_image=IMAGE_RECORD.exists(),
        home_is_writable=_is_writable_folder(environ.get("HOME")),
        user=_user(),
        own_folder=lambda: own_folder(temporary),
    )
    for name, value in changes.items():
        if value is None:
            del environ[name]
        else:
            environ[name] = value
    for name in ("HOME", *CACHES):
        if changes.get(name):
            try:
                Path(environ[name]).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise _nowhere_to_write(f"{environ[name]}: {error.strerror}") from None


def own_folder(temporary: Path) -> Path:
    """Make a user's folder among everybody's temporary files, and return it: nobody else can put anything into it.

    What lies there may be code (compilers' caches), so a folder that another user made, a link, or a folder that
    others can write to is not used: a new one with a random name is, and a line on stderr says so.

    Raises:
        RequestError: no folder can be made.
    """
    user_id = os.getuid()
    folder = temporary / f"noether-{user_id}"
    try:
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if (why := _why_not_own(folder, user_id)) == "":
            return folder
        other = Path(tempfile.mkdtemp(prefix=f"noether-{user_id}-", dir=temporary))
    except OSError as error:
        raise _nowhere_to_write(f"{folder}: {error.strerror}") from None
    print(f"noether: {folder} {why}; caches are in {other}, and are gone when this run ends", file=sys.stderr)
    atexit.register(shutil.rmtree, other, ignore_errors=True)
    return other


def _user() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user{os.getuid()}"


def _why_not_own(folder: Path, user_id: int) -> str:
    facts = folder.lstat()
    if not stat.S_ISDIR(facts.st_mode):
        return "is a link" if stat.S_ISLNK(facts.st_mode) else "is not a folder"
    if facts.st_uid != user_id:
        return "belongs to another user"
    return "can be written by others" if facts.st_mode & 0o022 else ""


def _nowhere_to_write(seen: str) -> RequestError:
    return RequestError(
        "no-cache-folder",
        "there is no place for caches and temporary files",
        seen=seen,
        expected="a folder of this machine that can be written",
        fix="docker run --tmpfs /tmp …      (or TMPDIR=FOLDER)",
    )


def _is_writable_folder(home: str | None) -> bool:
    # docker's home for a user it does not know is /, which root could write.
    return home is not None and home != "/" and os.path.isdir(home) and os.access(home, os.W_OK)

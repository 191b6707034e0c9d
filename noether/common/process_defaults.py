"""Set up what every program relies on: open streams, a working directory, UTF-8, cache folders, HOME and USER.

The image sets no variables by `ENV`, because under Apptainer an image's ENV overrides what the host exports.
"""

import atexit
import codecs
import contextlib
import locale
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
"""A file that the build of the image writes; it exists only in an image whose entry point is this program."""

# Caches of compilers and libraries. In a home folder on NFS, they crash jobs of several ranks.
CACHES = {
    "TRITON_CACHE_DIR": "triton", "TORCHINDUCTOR_CACHE_DIR": "inductor", "CUDA_CACHE_PATH": "cuda",
    "MPLCONFIGDIR": "matplotlib",
}  # fmt: skip
JOB_VARIABLES = ("SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID")
# Python's own variables: those of the host leak into an Apptainer container.
_LEAKS = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONUSERBASE")
_removed: dict[str, str] = {}


def process_defaults(
    environ: Mapping[str, str], *, in_image: bool, home_is_writable: bool, user: str, own_folder: Callable[[], Path]
) -> dict[str, str | None]:
    """Return the changes to the environment: {variable: its value, or None to remove it}.

    Outside of the image and of jobs, nothing changes. `own_folder` creates a folder on this node for this user alone.
    """
    if not in_image and not any(map(environ.get, JOB_VARIABLES)):
        return {}
    # One folder per user and node: the next job finds filled caches, and no folders accumulate.
    folder = own_folder()
    changes: dict[str, str | None] = {key: str(folder / leaf) for key, leaf in CACHES.items() if not environ.get(key)}
    if in_image:
        if not home_is_writable:
            changes["HOME"] = str(folder / "home")
        if not environ.get("USER") and not environ.get("LOGNAME"):
            # torch calls getpass.getuser(), which fails if neither is set and the password file has no entry.
            changes["USER"] = user
        changes.update(dict.fromkeys((name for name in _LEAKS if name in environ), None))
        changes["PYTHONNOUSERSITE"] = "1"
    return changes


def set_process_defaults(environ: os._Environ[str] = os.environ) -> None:
    """Apply the changes of `process_defaults` to this process, and create the folders in them.

    RequestError: there is no writable temporary folder, or a folder cannot be created.
    """
    try:
        temporary = Path(tempfile.gettempdir())
    except FileNotFoundError as error:
        raise _nowhere_to_write(str(error)) from None
    _choose_socket_folder(temporary)
    home = environ.get("HOME", "/")  # docker sets HOME=/ for an unknown user, and root could write to it.
    changes = process_defaults(
        environ,
        in_image=IMAGE_RECORD.exists(),
        home_is_writable=home != "/" and os.path.isdir(home) and os.access(home, os.W_OK),
        user=_user(),
        own_folder=lambda: own_folder(temporary),
    )
    for name, value in changes.items():
        if value is None:
            _removed[name] = environ.pop(name)
            continue
        environ[name] = value
        if name == "HOME" or name in CACHES:
            try:
                Path(value).mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise _nowhere_to_write(f"{value}: {error.strerror}") from None


def restore_python_path() -> None:
    """Restore PYTHONPATH for a user's script in the image, after the installed packages, which it must not shadow."""
    if given := _removed.get("PYTHONPATH"):
        os.environ["PYTHONPATH"] = given
        sys.path += map(os.path.abspath, given.split(os.pathsep))


LONGEST = 107 - len("/pymp-12345678/listener-12345678")
"""The maximum length in bytes of the path of a folder in which multiprocessing can bind its sockets (unix(7))."""


def _choose_socket_folder(temporary: Path) -> None:
    """Make multiprocessing create its sockets in another folder if the path of the temporary folder is too long."""
    if len(os.fsencode(temporary)) > LONGEST:
        from multiprocessing.util import get_temp_dir

        tempfile.tempdir = next(
            (place for place in ("/tmp", "/dev/shm", "/var/tmp") if os.access(place, os.W_OK)), None
        )
        get_temp_dir()  # Child processes inherit this choice.
        tempfile.tempdir = str(temporary)


def own_folder(temporary: Path) -> Path:
    """Create and return a folder of this user in the shared temporary folder; nobody else can put code into it.

    If a folder of that name belongs to another user, is a link or is writable by others, choose a random name.

    RequestError: no folder can be created.
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
    print(f"noether: {folder} {why}; caches are in {other} until this run ends", file=sys.stderr)
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
    return RequestError("no-cache-folder", "there is no place for caches and temporary files", seen=seen,
                        expected="a writable folder on this machine",
                        fix="docker run --tmpfs /tmp …      (or TMPDIR=FOLDER)")  # fmt: skip


UTF8_MODE = "PYTHONUTF8"


def open_closed_streams() -> None:
    """Open closed standard streams (`>&-`) as /dev/null, so that no file opened later receives their output."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # open() takes the lowest free descriptor, which is `number`; child processes inherit it.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8", closefd=False))


def check_working_directory() -> None:
    """Refuse to start in a folder that has been removed."""
    try:
        os.getcwd()
    except FileNotFoundError:
        raise RequestError("working-directory-removed", "the working directory has been removed",
                           seen=os.environ.get("PWD", "a folder that is gone"), expected="a folder that exists",
                           fix="cd ~") from None  # fmt: skip


def use_utf8() -> None:
    """Restart this program in Python's UTF-8 mode if the locale has another encoding (such as LC_ALL=C).

    If PYTHONIOENCODING demands ASCII, a stream stays ASCII, and prints ? for characters that it cannot encode.
    """
    if not _is_utf8(locale.getpreferredencoding(False)) and os.environ.get(UTF8_MODE) != "1":
        os.environ[UTF8_MODE] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
    asked, _, errors = os.environ.get("PYTHONIOENCODING", "").partition(":")
    if asked and not errors and not _is_utf8(asked):
        os.environ["PYTHONIOENCODING"] = f"{asked}:replace"
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure") and not _is_utf8(stream.encoding or "utf-8"):
            stream.reconfigure(errors="replace")


def _is_utf8(name: str) -> bool:
    with contextlib.suppress(LookupError):
        return codecs.lookup(name).name == "utf-8"
    return False

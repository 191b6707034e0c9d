"""Decide whether a run is the user's own. Code named in another user's settings runs only with the user's consent.

Starting a run writes a mark, `started-by.json`. It contains the folder in which the run was started, where its code
is looked up again, and a signature of that folder and of the settings sections that name custom code. Only this user
can read the signing key (`~/.local/state/noether/key`, or under XDG_STATE_HOME). File ownership proves nothing:
whoever copies or unpacks a run owns the files. So without the key, as in a container with a separate home directory,
a run is trusted only if the user allows it.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from pathlib import Path

from noether.common.atomic_write import write_json
from noether.common.dotted_path import GrantedCode
from noether.common.errors import RequestError
from noether.common.safe_open import read_plain
from noether.config.schema import RunConfig
from noether.runs.folder import RunFolder

MARK = "started-by.json"


def mark_own(folder: RunFolder, config: RunConfig) -> None:
    """Mark a run with these settings as started by this user, if its settings name custom code.

    If no signing key can be stored, leave the run without a mark.
    """
    key = _own_key(make=True) if config.own_code(submits=True) else None
    if key is not None:
        here = os.getcwd()
        write_json(folder.path / MARK, {"signature": _signature(key, config, here), "folder": here})


def approved_code(
    folder: RunFolder,
    config: RunConfig,
    written_in: Path,
    trust: bool,
    fix: str = "",
    *,
    trains: bool,
    submits: bool = False,
) -> GrantedCode:
    """Return the dotted paths in a run's settings that may be imported, to pass to `code_granted`.

    Look for the code in the folder in which the run was started, if a mark with the user's signature records it.

    config: the settings that will be used. written_in: the file that these settings were read from.
    trust: whether the user allows this run's code to run. fix: how to allow this code; by default --trust.
    trains: whether the run will train; if not, code that only training uses, such as an optimiser, is left out.
    submits: whether the run continues in a job, which also uses shell lines and a container image from the settings.
    RequestError: the run names code, and this user neither started the run nor trusts it.
    """
    code = config.own_code(trains=trains, submits=submits)
    why, place = _why_not_own(folder, config, written_in) if code else ("", "")
    if why and not trust:
        raise RequestError(
            "untrusted-run",
            f"{folder.path.name} was not started by you, and names code that would run with your rights",
            seen=f"{', '.join(f'{setting}={path}' for path, setting in code.items())} in {written_in}; {why}",
            expected="a run that you started, or settings that you have read",
            fix=fix or f"--trust      (after reading {written_in.name}; trust=True in Python)",
        )
    granted = GrantedCode(code)
    with contextlib.suppress(OSError):  # Somebody else may have recreated a deleted folder.
        granted.folder = place if os.stat(place).st_uid == os.getuid() else ""
    return granted


def _why_not_own(folder: RunFolder, config: RunConfig, written_in: Path) -> tuple[str, str]:
    """Return why the run is not regarded as the user's own ("" if it is), and the folder in which it was started."""
    owner = written_in.lstat().st_uid
    if owner != os.getuid():
        return f"the file belongs to user {owner}", ""
    key = _own_key(make=False)
    if key is None:
        return "this user has no key that could have signed it", ""
    try:
        mark = json.loads(read_plain(folder.path / MARK))
        signature, place = str(mark["signature"]), str(mark.get("folder", ""))  # Earlier versions recorded no folder.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"there is no {MARK} of yours", ""
    fits = hmac.compare_digest(signature.encode(), _signature(key, config, place).encode())
    return ("", place) if fits else (f"{MARK} does not match the settings", "")


def _signature(key: bytes, config: RunConfig, place: str) -> str:
    sections = {setting.partition(".")[0] for setting in config.own_code(submits=True).values()}
    text = json.dumps(config.model_dump(mode="json", include=sections), sort_keys=True) + place
    return hmac.new(key, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()


def _own_key(*, make: bool) -> bytes | None:
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    path = Path(state) / "noether" / "key"
    with contextlib.suppress(OSError):
        if make and not path.exists():
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            partial = path.with_name(f".key.{os.getpid()}.{secrets.token_hex(4)}")
            with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secrets.token_bytes(32))
            with contextlib.suppress(FileExistsError):
                os.link(partial, path)  # If several processes make a key at once, the first key wins.
            partial.unlink()
        facts = path.lstat()
        if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077:
            return path.read_bytes() or None
    return None

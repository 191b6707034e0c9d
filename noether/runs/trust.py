"""Decides whether a run is the user's own: code named in the settings of another user's run is not run unasked.

A run that is started gets a mark, `started-by.json`: the folder in which it was started, where its code is looked for
again, and a signature of that and of its settings for what is code of the user's own, with a key that only this user
can read (`~/.local/state/noether/key`, or under XDG_STATE_HOME). Who owns a file proves
nothing: a run that was copied or unpacked belongs to whoever did so. So without the key, as in a container with a home
of its own, a run is trusted only if the user says so.
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
    """Mark a run with these settings as started by this user; where no key can be kept, it is left without a mark.

    Only runs that name code of their own need one.
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
    """Return the dotted paths in the settings of a run that may be imported: `code_granted` takes them.

    They are looked for in the folder in which the run was started, if the user's own mark says which that is.

    config: its settings as they are about to be built. written_in: the file that they were read from.
    trust: whether the user has said that this run's code may run. fix: the words that say so; by default --trust.
    trains: whether the run goes on training; else code that only trains, such as an optimiser, is not imported.
    submits: whether it goes on in a job, which runs shell lines and an image too.
    RequestError: the run names code, this user did not start it and does not trust it.
    """
    code = config.own_code(trains=trains, submits=submits)
    why, place = _why_not_own(folder, config, written_in) if code else ("", "")
    if why and not trust:
        raise RequestError(
            "untrusted-run",
            f"{folder.path.name} was not started by you, and names code that would run with your rights",
            seen=f"{', '.join(f'{setting}={path}' for path, setting in code.items())} in {written_in}; {why}",
            expected="a run that you have started, or settings that you have read",
            fix=fix or f"--trust      (after reading {written_in.name}; trust=True in Python)",
        )
    granted = GrantedCode(code)
    with contextlib.suppress(OSError):  # A folder that is gone may have been made anew by somebody else.
        granted.folder = place if os.stat(place).st_uid == os.getuid() else ""
    return granted


def _why_not_own(folder: RunFolder, config: RunConfig, written_in: Path) -> tuple[str, str]:
    """Return why the run is not taken for the user's own, or "" and the folder in which it was started."""
    owner = written_in.lstat().st_uid
    if owner != os.getuid():
        return f"the file belongs to user {owner}", ""
    key = _own_key(make=False)
    if key is None:
        return "this user has no key that could have signed it", ""
    try:
        mark = json.loads(read_plain(folder.path / MARK))
        signature, place = str(mark["signature"]), str(mark.get("folder", ""))  # Earlier versions kept no folder.
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return f"there is no {MARK} of yours", ""
    fits = hmac.compare_digest(signature.encode(), _signature(key, config, place).encode())
    return ("", place) if fits else (f"{MARK} does not fit the settings", "")


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
                os.link(partial, path)  # Of several starts at once, the first one's key stays.
            partial.unlink()
        facts = path.lstat()
        if stat.S_ISREG(facts.st_mode) and facts.st_uid == os.getuid() and not facts.st_mode & 0o077:
            return path.read_bytes() or None
    return None

"""Decides whether a run is the user's own: code named in the settings of another user's run is not run unasked.

A run that is started gets a mark, `started-by.json`: the settings of its components, signed with a key that only this
user can read (`~/.local/state/noether/key`, or under XDG_STATE_HOME). Where there is no such key, as in a container
with a home of its own, it counts who owns the file of the settings.
"""

import contextlib
import hashlib
import hmac
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from noether.common.whole_file import write_json
from noether.errors import RequestError
from noether.runs.folder import RunFolder

MARK = "started-by.json"
OWN_PACKAGE = "noether."


def mark_own(folder: RunFolder, settings: Mapping[str, Any]) -> None:
    """Marks a run with these settings as started by this user; where no key can be kept, it is left without a mark.

    Only runs that name code of their own need one.
    """
    key = _own_key(make=True) if any(foreign_kinds(settings)) else None
    if key is not None:
        write_json(folder.path / MARK, {"signature": _signature(key, settings)})


def check_trust(folder: RunFolder, trust: bool) -> None:
    """Refuses to run code that the settings of somebody else's run name, unless the user says to `trust` it.

    Raises:
        RequestError: the run names code outside of this package, and this user did not start it.
    """
    settings = _settings(folder)
    named = list(foreign_kinds(settings))
    if trust or not named:
        return
    why = _why_not_own(folder, settings)
    if why:
        raise RequestError(
            f"{folder.path.name} was not started by you, and names code that would run with your rights",
            seen=f"{', '.join(f'{name}.kind={kind}' for name, kind in named)} in {folder.config}; {why}",
            expected="a run that you have started, or settings that you have read",
            fix="--trust      (after reading config.yaml)",
        )


def _why_not_own(folder: RunFolder, settings: Mapping[str, Any]) -> str:
    owner = folder.config.stat().st_uid
    if owner != os.getuid():
        return f"the file belongs to user {owner}"
    key = _own_key(make=False)
    if key is None:
        return ""
    try:
        signature = str(json.loads((folder.path / MARK).read_bytes())["signature"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"there is no {MARK} of yours"
    fits = hmac.compare_digest(signature.encode(), _signature(key, settings).encode())
    return "" if fits else f"{MARK} does not fit the settings"


def _settings(folder: RunFolder) -> dict[str, Any]:
    try:
        settings = yaml.safe_load(folder.config.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError):
        return {}  # Whoever reads it next says so.
    return settings if isinstance(settings, dict) else {}


def foreign_kinds(settings: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yields (section, dotted path) of everything outside of this package that the settings would have built."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from foreign_kinds(value, f"{path}{name}.")
        elif name == "kind" and "." in str(value) and not str(value).startswith(OWN_PACKAGE):
            yield path.rstrip("."), str(value)


def _signature(key: bytes, settings: Mapping[str, Any]) -> str:
    components = {name: part for name, part in settings.items() if isinstance(part, Mapping) and "kind" in part}
    text = json.dumps(components, sort_keys=True, default=str)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


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

"""Turn a name in the settings into an object: a built-in kind has a short name; user code must have been granted."""

import importlib
import importlib.util
import os
import sys
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import ModuleType
from typing import Any

from noether.common.errors import NoetherError, RequestError
from noether.common.processes import EndedBySignal, leaving_as_told
from noether.common.suggest import nearest

LISTS = ("trainer.callbacks", "tracker.services")
"""Settings that hold a list of names."""


class GrantedCode(frozenset[str]):
    """The dotted paths that may be imported. The folder `folder` is searched first ("": the working directory)."""

    folder = ""


_GRANTED: ContextVar[GrantedCode] = ContextVar("granted", default=GrantedCode())  # noqa: B039 - it is frozen


@contextmanager
def code_granted(paths: Iterable[str]) -> Iterator[None]:
    """Allow the block to import the dotted paths `paths` and no others. A new thread may import no dotted path.

    Training grants the paths in its settings; an evaluation grants the paths that `noether.runs.trust` approved.
    """
    before = _GRANTED.set(paths if isinstance(paths, GrantedCode) else GrantedCode(paths))
    try:
        yield
    finally:
        _GRANTED.reset(before)


def load_object(name: str, setting: str, registry: Mapping[str, str] | None = None, base: type | None = None) -> Any:
    """Return the object that a setting names by an entry of `registry` or by a dotted path.

    A dotted path must have been granted. `base`, the class to derive from, only helps an error to suggest names.

    Raises:
        RequestError: the name is not a dotted path or was not granted; its module is missing, shadowed or lacks the
            name; or the import raises an exception, whose lines the error shows.
    """
    path = (registry or {}).get(name, name)
    if name not in (registry or {}):
        _check_granted(path, setting)
    module_name, _, attribute = path.rpartition(".")
    folder = _GRANTED.get().folder if path == name else ""
    if path == name:
        _look_first(folder or os.getcwd())
    module = _import(module_name, path, setting)
    _check_place(module, folder)
    found = getattr(module, attribute, module)
    if not isinstance(found, ModuleType):
        return found
    summary = f"module {module_name} has no {attribute}"
    if hasattr(module, "__path__") and importlib.util.find_spec(path):
        module, summary = _import(path, path, setting), f"{path} is a module"
    own = defined_in(module, base)
    meant = f"{module.__name__}.{nearest(attribute, own) or (own[0] if own else 'MyClass')}"
    raise RequestError("no-such-attribute", summary,
                       seen=f"{setting}={path}, found in {getattr(module, '__file__', None) or module.__name__}",
                       expected=f"one of {', '.join(own)}" if own else "a name defined in that module",
                       fix=f"{setting}='[{meant}]'" if setting in LISTS else f"{setting}={meant}")  # fmt: skip


def defined_in(module: ModuleType, base: type | None = None) -> list[str]:
    """Return the names of the subclasses of `base`, or of all classes and functions, that a module itself defines."""
    found = []
    for name, value in vars(module).items():
        place = getattr(value, "__module__", None) or ""
        is_own = place == module.__name__ or place.startswith(f"{module.__name__}.")
        fits = issubclass(value, base) if isinstance(value, type) and base else base is None and callable(value)
        if is_own and fits and value is not base and not name.startswith("_"):
            found.append(name)
    return found


def _check_granted(path: str, setting: str) -> None:
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise RequestError("not-a-dotted-path", f"{setting} is not a dotted path", seen=f"{setting}={path}",
                           expected="package.module.Name", fix=f"{setting}=my_package.my_module.MyClass")  # fmt: skip
    if path not in _GRANTED.get():
        raise RequestError("untrusted-code", f"{setting} names code that would run with your rights",
                           seen=f"{setting}={path}, in settings that are not known to be yours",
                           expected="a built-in name, or settings that you wrote or have reviewed",
                           fix="--trust, or trust=True in Python      (after reading the settings)")  # fmt: skip


def _look_first(folder: str) -> None:
    """Put a folder first on sys.path. Only for a user's code: noether's own code must not be searched for there."""
    # The folder stays there, because loader workers inherit sys.path and need it to unpickle a user's class.
    if folder not in sys.path and not ("" in sys.path and folder == os.getcwd()):
        sys.path.insert(0, folder)


def _check_place(module: ModuleType, folder: str) -> None:
    """Refuse a module that exists in the granted folder but was already imported from another folder."""
    file, place = getattr(module, "__file__", None), os.path.join(folder, *module.__name__.split(".")) + ".py"
    if folder and file and os.path.exists(place) and not os.path.samefile(place, file):
        raise RequestError("module-of-another-folder", f"{module.__name__} was imported from another folder",
                           seen=file, expected=place, fix="load that run in a new Python process")  # fmt: skip


def _import(module_name: str, path: str, setting: str) -> Any:
    try:
        with leaving_as_told():
            return importlib.import_module(module_name)
    except (NoetherError, EndedBySignal):
        raise
    except (Exception, SystemExit) as error:
        missing = error.name or module_name if isinstance(error, ModuleNotFoundError) else ""
        if missing and (missing == module_name or module_name.startswith(missing + ".")):
            raise RequestError(
                "no-such-module", f"no module named {missing}",
                seen=f"{setting}={path}, working directory {os.getcwd()}",
                expected=f"{missing} in the working directory, or installed",
                fix=f"start from the directory that contains {missing.split('.')[0]}, or change {setting}=",
            ) from error  # fmt: skip
        frames = traceback.extract_tb(error.__traceback__)
        own = [one for one in frames if one.filename != __file__ and "importlib" not in one.filename]
        said = traceback.format_list(own[-3:]) + traceback.format_exception_only(error)
        raise RequestError("import-raises", f"{module_name} cannot be imported: {said[-1].strip()}",
                           seen=f"{setting}={path}\n" + "".join(said[:-1]).rstrip(),
                           expected="a module that can be imported here, as can every module that it imports",
                           fix=f"{f'install {missing}' if missing else 'correct the last line shown'}, "
                           f"or change {setting}=") from error  # fmt: skip

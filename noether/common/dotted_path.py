"""Imports the object that a dotted path names: a user's own model, data set or task."""

import importlib
import os
import sys
from typing import Any

from noether.common.suggest import nearest
from noether.errors import RequestError


def load_object(path: str, setting: str) -> Any:
    """Import the object that `package.module.Name` names, the working directory first on the path.

    `setting` is the configuration key it came from, such as `model.kind`, for the error.

    Raises:
        RequestError: not a dotted path, no such module, a module it imports is missing, or no such name in
            it. Other errors of the imported code are left alone: their traceback is what helps.
    """
    module_name, _, name = path.rpartition(".")
    if not module_name or not all(part.isidentifier() for part in path.split(".")):
        raise RequestError(
            f"{setting} is not a dotted path",
            seen=f"{setting}={path}",
            expected="package.module.Name",
            fix=f"{setting}=my_package.my_module.MyClass",
        )
    module = _import(module_name, path, setting)
    try:
        return getattr(module, name)
    except AttributeError:
        public = [known for known in dir(module) if not known.startswith("_")]
        raise RequestError(
            f"module {module_name} has no {name}",
            seen=f"{setting}={path}, found in {getattr(module, '__file__', None) or module_name}",
            expected="a name defined in that module",
            fix=f"{setting}={module_name}.{nearest(name, public) or 'MyClass'}",
        ) from None


def _import(module_name: str, path: str, setting: str) -> Any:
    # First, as `python -m` has it; and for good, because loader workers that unpickle a user's class are
    # given this process's sys.path.
    directory = os.getcwd()
    if directory not in sys.path and "" not in sys.path:
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if missing == module_name or module_name.startswith(missing + "."):
            raise RequestError(
                f"no module named {missing}",
                seen=f"{setting}={path}, working directory {os.getcwd()}",
                expected=f"{missing} in the working directory, or installed",
                fix=f"start from the directory that holds {missing.split('.')[0]}, or change {setting}=",
            ) from error
        raise RequestError(
            f"{module_name} imports {missing}, which is not installed",
            seen=f"{setting}={path}: {error}",
            expected="every module it imports to be importable here",
            fix=f"install {missing}, or change {setting}=",
        ) from error

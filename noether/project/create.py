"""Write a new project: a working data set, model and task, with settings, tests, a job script and a Dockerfile."""

import keyword
import os
import re
import secrets
import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from noether.common.errors import ExitCode, RequestError

TEMPLATE = Path(__file__).resolve().parent / "template"
"""The folder of a working project, whose name is NAME and whose package is PACKAGE."""
NAME, PACKAGE = "my-project", "my_project"
OWN_FOLDERS = ("tests", "runs", "slurm")
"""The names of folders in every project, which a project's package must not have."""


def create_here(project: str, *, dry_run: bool) -> int:
    """Write the project or list its files; return the exit code.

    Args:
        project: the folder to create. The last part of its path is the project's name.
        dry_run: list the files and write nothing.

    RequestError: the name is not valid for a Python package, or the folder already exists or cannot be written.
    """
    folder = Path(project).expanduser()
    _refuse_existing(folder)
    package = package_name(folder)
    files = {_named(relative, folder.name, package): relative for relative in template_files()}
    for name in sorted(files):
        print(folder / name)
    if dry_run:
        return ExitCode.DONE
    try:
        _write(folder, files, package)
    except OSError as error:
        raise RequestError("project-not-written", f"cannot write {folder}",
                           seen=f"{error.strerror} ({error.filename or folder})",
                           expected="a folder in which a new folder can be made",
                           fix=f"noether init /tmp/{folder.name}      (or another folder of your own)",
                           mount=str(folder.absolute().parent)) from None  # fmt: skip
    print(f"\nnext:\n  cd {folder}\n  noether train --hp settings.yaml\n  python -m pytest")
    return ExitCode.DONE


def package_name(folder: Path) -> str:
    """Return the name of the Python package of the project in a folder: heat_rod for heat-rod.

    RequestError: Python could not import a package of that name, or the package would hide an existing module.
    """
    package = folder.name.replace("-", "_")
    usable = re.sub(r"\W+", "_", package, flags=re.ASCII).strip("_").lower()
    usable = usable if usable[:1].isalpha() else f"my_{usable}".rstrip("_")
    if not re.fullmatch(r"[A-Za-z]\w*", package, flags=re.ASCII):
        raise _refused(folder, "letters, digits, - and _, a letter first", usable)
    if keyword.iskeyword(package) or package in sys.stdlib_module_names or package in OWN_FOLDERS:
        raise _refused(folder, f"another name: {package} is Python's own, or a folder of every project", f"my_{usable}")
    installed = find_spec(package)
    if installed is not None and installed.origin:
        raise _refused(folder, f"another name: a module {package} is installed here", f"my_{usable}")
    return package


def _refused(folder: Path, expected: str, name: str) -> RequestError:
    return RequestError("project-name", f"a project cannot be called {folder.name!r}", seen=f"noether init {folder}",
                        expected=expected, fix=f"noether init {folder.parent / name}")  # fmt: skip


def template_files() -> Iterator[Path]:
    """Yield the paths of the template's files, relative to the template's folder."""
    for path in sorted(TEMPLATE.rglob("*")):
        relative = path.relative_to(TEMPLATE)
        if path.is_file() and not any(part.endswith("_cache") or part == "__pycache__" for part in relative.parts):
            yield relative


def _named(text: str | Path, name: str, package: str) -> str:
    # Replace both names in one pass, because the new name may contain the template's name.
    return re.sub(f"{NAME}|{PACKAGE}", lambda found: name if found[0] == NAME else package, str(text))


def _refuse_existing(folder: Path) -> None:
    if not os.path.lexists(folder):
        return
    number = next(n for n in range(2, 10_000) if not os.path.lexists(f"{folder}_{n}"))
    raise RequestError("project-exists", f"{folder} already exists", seen="a folder" if folder.is_dir() else "a file",
                       expected="a folder that does not exist yet", fix=f"noether init {folder}_{number}")  # fmt: skip


def _write(folder: Path, files: dict[str, Path], package: str) -> None:
    """Write the project under a temporary name and rename it, so that an interruption leaves no partial project."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = folder.with_name(f".{folder.name}-{secrets.token_hex(4)}")
    scratch.mkdir()
    try:
        for name, relative in files.items():
            target = scratch / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(_named((TEMPLATE / relative).read_text("utf-8"), folder.name, package), "utf-8")
        scratch.rename(folder)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

"""Teaching the linter a program whose processes are ranks, and reading the file of a site."""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from os import environ
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from slurm_lint.words import UsageError, nearest

if TYPE_CHECKING:
    from slurm_lint.finding import Finding
    from slurm_lint.job import Job
    from slurm_lint.rules import Rule

SITE_FILE = "/etc/slurm-lint.toml"
SITE_VARIABLE = "SLURM_LINT_SITE"


class Program(Protocol):
    """A program whose processes are ranks. As the only process on a node, it starts a rank for each GPU of the node.

    `rules`: the program's own rules, whose findings `check` yields.
    """

    rules: "Sequence[Rule]"

    def script_word(self, words: Sequence[str], *, image: bool) -> int | None:
        """Return the index of the user's script in the words, 0 without a script, None for another program's words.

        The first word is a command or a module; with `image=True`, an image whose entry point reads the other words.
        """

    def check(self, job: "Job") -> "Iterator[Finding]":
        """Yield the findings about those lines of a job that start the program."""


@dataclass(frozen=True)
class Site:
    """A cluster as its administrator describes it in a TOML file. Entries that the file lacks are not checked.

    slurm: the version, such as 23.02. partitions: all partitions. required: the options that every job must set.
    options: options that plugins add to sbatch and srun. disable: codes or names of the rules to turn off.
    """

    slurm: float | None = None
    partitions: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


@dataclass(frozen=True)
class Asked:
    """What the linter has to consider: the site, the taught programs, and whether to show advice."""

    site: Site = field(default_factory=Site)
    programs: tuple[Program, ...] = ()
    advice: bool = False


NOTHING = Asked()


def read_site(path: str | None, slurm: str | None = None) -> Site:
    """Load the site's file: `path`, else the file named by $SLURM_LINT_SITE, else /etc/slurm-lint.toml if it exists.

    `slurm`: the version on the command line, which overrides the version in the file. UsageError: there is no such
    file, or one of its lines is wrong.
    """
    name = path or environ.get(SITE_VARIABLE) or SITE_FILE
    said: Mapping[str, Any] = {}
    try:
        said = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if name != SITE_FILE:
            raise UsageError(f"no site file {name}", fix="--site FILE, or unset SLURM_LINT_SITE") from None
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read the site file {name}: {error}", fix='slurm = "23.02"') from None
    names, values = [each.name for each in fields(Site)], dict[str, Any]()
    for key, value in ({**said} | ({"slurm": slurm} if slurm is not None else {})).items():
        if key not in names:
            near = nearest(key, names)
            raise UsageError(f"{name}: {key!r} is not a line of a site file", fix=near or ", ".join(names))
        if key == "slurm":
            if not (version := re.fullmatch(r"(\d+)\.(\d+)(\..*)?", str(value))):
                raise UsageError(f"{value!r} is not a version of Slurm", fix="--slurm 23.02")
            values[key] = float(f"{int(version[1]):02}.{int(version[2]):02}")
        elif isinstance(value, list) and all(isinstance(each, str) for each in value):
            values[key] = tuple(each.lstrip("-") for each in value)
        else:
            raise UsageError(f"{name}: {key} is {value!r}, expected a list of words", fix=f'{key} = ["…"]')
    return Site(**values)

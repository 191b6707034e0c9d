"""Sweeps: `seed=1,2 model=upt,mine` becomes four lists of overrides, one for each run (Hydra's grammar)."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING

from noether.common.errors import RequestError

if TYPE_CHECKING:  # Importing Hydra would delay every error about a wrong flag.
    from hydra.core.override_parser.types import Override

_BETWEEN_COMMAS = re.compile(
    r"""(?:\\.|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[[^\]]*\]|\([^)]*\)|{[^}]*}|[^\\,'"])+""", re.DOTALL
)
"""Matches each piece of a text that is split at commas, except commas inside quotes or brackets."""
MOST_WORDS, MOST_CHARACTERS = 1_000, 2**15


def expand_sweep(overrides: Sequence[str], verb: str = "train") -> list[list[str]]:
    """Return the overrides of each run of a sweep; the last key with several values varies fastest.

    Several values are written as in Hydra: `a=1,2,3`, `a=choice(…)` or `a=range(…)`. An override with one value is
    copied unchanged to every run. So is an override that cannot be parsed; composing the configuration reports it.
    RequestError: no override has several values; an override has the same value twice; or an override has no list of
    values, because it is `glob(…)` (all files of a group) or `interval(…)`.
    """
    check_amount(overrides)
    choices = []
    for text in overrides:
        override = parse_override(text)
        if override is None:
            choices.append([text])
            continue
        choices.append(_values(override, text) if override.is_sweep_override() else [text])
        distinct = list(dict.fromkeys(choices[-1]))
        if len(distinct) < len(choices[-1]):
            key, values = override.get_key_element(), [one.partition("=")[2] for one in distinct]
            raise RequestError(
                "swept-value-twice",
                f"{key} has a value twice",
                seen=text,
                expected="distinct values: a repeated value would train the same run again",
                fix=f"{key}={','.join(values)}"
                if len(values) > 1
                else shlex.join(["noether", verb, *(one if one != text else distinct[0] for one in overrides)]),
            )
    if all(len(values) == 1 for values in choices):
        raise RequestError("nothing-to-sweep", "-m trains a run for each value, but no setting has several values",
                           seen=" ".join(overrides) or "no settings", expected="a list such as seed=1,2,3",
                           fix="leave -m out      (or add seed=1,2,3)")  # fmt: skip
    return [list(run) for run in product(*choices)]


def check_amount(overrides: Sequence[str]) -> None:
    """Raise RequestError if there are so many overrides that parsing would take longer than a few seconds."""
    characters = sum(map(len, overrides))
    if len(overrides) > MOST_WORDS or characters > MOST_CHARACTERS:
        raise RequestError(
            "too-many-overrides",
            "the command line has more settings than noether reads",
            seen=f"{len(overrides):,} settings, {characters:,} characters",
            expected=f"at most {MOST_WORDS:,}, of {MOST_CHARACTERS:,} characters together; a file may have more",
            fix="--hp FILE      (a YAML file with these settings)",
        )


def parse_override(text: str) -> "Override | None":
    """Parse one override with Hydra's parser; return None if it is not an override."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    with suppress(HydraException, ValueError, RecursionError):  # Too many digits or brackets.
        return OverridesParser.create().parse_override(text)
    return None


def override_value(text: str) -> str:
    """Return a text as Hydra's grammar writes it: quoted if Hydra would otherwise read something else."""
    override = parse_override(f"key={text}")
    is_read_so = override is not None and not override.is_sweep_override() and override.value() == text
    return text if is_read_so else quoted(text)


def as_typed(text: str) -> str:
    """Return a typed value, quoted if Hydra's grammar could not read it or would read several values."""
    override = parse_override(f"key={text}")
    return quoted(text) if override is None or override.is_sweep_override() else text


def quoted(text: str) -> str:
    """Return a text in quotes for Hydra's grammar, where a backslash needs escaping only before a quote."""
    return '"' + re.sub(r'(\\*)("|\Z)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text) + '"'


def varied(runs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Return each run's overrides, without those that are the same in all runs."""
    if len(runs) < 2:
        return [[] for _ in runs]
    differs = [len({run[place] for run in runs}) > 1 for place in range(len(runs[0]))]
    return [[text for text, shown in zip(run, differs, strict=True) if shown] for run in runs]


def run_names(names: Sequence[str], differs: Sequence[Sequence[str]]) -> list[str]:
    """Return a unique name for each run of a sweep: its name in `names`, then the overrides that differ (cars-seed1).

    If these names would be too long, or not unique, number the runs from 0 instead (cars-0).
    """
    said = []
    for words in differs:
        pairs = (word.lstrip("+~").partition("=") for word in words if not word.lstrip("+").startswith("run_id="))
        parts = (f"{key.rpartition('.')[2]}{'' if value[:1].isdigit() else '_'}{value}" for key, _, value in pairs)
        said.append(re.sub(r"[^\w.+-]+", "_", "-".join(parts)))
    found = [f"{name}-{own}" for name, own in zip(names, said, strict=True)]
    is_plain = len({name.lower() for name in found}) == len(found) and max(map(len, said)) <= 60
    return found if is_plain else [f"{name}-{number}" for number, name in enumerate(names)]


def _values(override: "Override", text: str) -> list[str]:
    from hydra.core.override_parser.types import Glob

    if override.is_interval_sweep() or isinstance(override.value(), Glob):
        key = override.get_key_element()
        raise RequestError("no-sweep-values", f"{key} has no list of values", seen=text,
                           expected="a list, choice(…) or range(…)", fix=f"{key}=VALUE,VALUE")  # fmt: skip
    # Use the values as typed, because Hydra rewrites some (1_1 becomes 11). Only computed values (range) are Hydra's.
    values = list(override.sweep_string_iterator())
    written = text.partition("=")[2].strip()
    inner = re.fullmatch(r"choice\((.*)\)", written, re.DOTALL)
    pieces = [piece.strip() for piece in _BETWEEN_COMMAS.findall(inner[1] if inner else written)]
    if len(pieces) == len(values) and (inner or len(pieces) > 1):
        values = pieces
    return [f"{override.get_key_element()}={value}" for value in values]

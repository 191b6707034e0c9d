"""Expands a sweep into its runs: `seed=1,2 model=upt,mine` becomes four lists of overrides (Hydra's grammar)."""

import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import TYPE_CHECKING

from noether.common.errors import RequestError

if TYPE_CHECKING:  # Hydra takes longer to import than a wrong flag to refuse.
    from hydra.core.override_parser.types import Override

_BETWEEN_COMMAS = re.compile(
    r"""(?:\\.|'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*"|\[[^\]]*\]|\([^)]*\)|{[^}]*}|[^\\,'"])+""", re.DOTALL
)
"""What is between the commas that are outside quotes and brackets."""
MOST_WORDS, MOST_CHARACTERS = 1_000, 2**15


def expand_sweep(overrides: Sequence[str], verb: str = "train") -> list[list[str]]:
    """Returns the overrides of each run of a sweep; the last key with several values varies fastest.

    Several values are written as in Hydra: lists (`a=1,2,3`), `choice(…)` or `range(…)`. An override with one value is
    copied unchanged to every run. So is one that cannot be parsed: composing the configuration reports what is wrong
    with it.

    Raises:
        RequestError: no override has several values, one has a value twice, or a sweep is over all files of a group
            (`glob(…)`) or over an interval, which has no list of values.
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
                expected="different values: the same settings train the same run",
                fix=f"{key}={','.join(values)}"
                if len(values) > 1
                else shlex.join(["noether", verb, *(one if one != text else distinct[0] for one in overrides)]),
            )
    if all(len(values) == 1 for values in choices):
        raise RequestError("nothing-to-sweep", "-m trains a run for each value, and no setting has several",
                           seen=" ".join(overrides) or "no settings", expected="a list such as seed=1,2,3",
                           fix="leave -m out      (or add seed=1,2,3)")  # fmt: skip
    return [list(run) for run in product(*choices)]


def check_amount(overrides: Sequence[str]) -> None:
    """Raises RequestError for more words than are read in some seconds: the parser's time grows faster than a list."""
    characters = sum(map(len, overrides))
    if len(overrides) > MOST_WORDS or characters > MOST_CHARACTERS:
        raise RequestError(
            "too-many-overrides",
            "more settings are typed than are read",
            seen=f"{len(overrides):,} settings, {characters:,} characters",
            expected=f"at most {MOST_WORDS:,}, of {MOST_CHARACTERS:,} characters together; a file may have more",
            fix="--hp FILE      (a YAML file with these settings)",
        )


def parse_override(text: str) -> "Override | None":
    """Parses one override with Hydra's parser; None: it is none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    with suppress(HydraException, ValueError, RecursionError):  # A number of thousands of digits, or as many brackets.
        return OverridesParser.create().parse_override(text)
    return None


def override_value(text: str) -> str:
    """Returns a text so that Hydra's grammar reads back the same text: quoted if it would read something else."""
    override = parse_override(f"key={text}")
    is_read_so = override is not None and not override.is_sweep_override() and override.value() == text
    return text if is_read_so else quoted(text)


def as_typed(text: str) -> str:
    """Returns what was typed as a value: quoted if Hydra's grammar could not read it, or only as several."""
    override = parse_override(f"key={text}")
    return quoted(text) if override is None or override.is_sweep_override() else text


def quoted(text: str) -> str:
    """Returns a text in the quotes of Hydra's grammar, where backslashes are literal except before a quote."""
    return '"' + re.sub(r'(\\*)("|\Z)', lambda match: match[1] * 2 + ('\\"' if match[2] else ""), text) + '"'


def varied(runs: Sequence[Sequence[str]]) -> list[list[str]]:
    """Returns for each run only the overrides in which the runs differ."""
    if len(runs) < 2:
        return [[] for _ in runs]
    differs = [len({run[place] for run in runs}) > 1 for place in range(len(runs[0]))]
    return [[text for text, shown in zip(run, differs, strict=True) if shown] for run in runs]


def run_names(names: Sequence[str], differs: Sequence[Sequence[str]]) -> list[str]:
    """Returns a name for each run of a sweep, from that of its settings and what it differs by: cars-seed1.

    Where those would be long, or not all different, the runs are numbered from 0.
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
    # As they were written, because Hydra rewrites some (1_1 becomes 11), unless they are made, as by range(…).
    values = list(override.sweep_string_iterator())
    written = text.partition("=")[2].strip()
    inner = re.fullmatch(r"choice\((.*)\)", written, re.DOTALL)
    pieces = [piece.strip() for piece in _BETWEEN_COMMAS.findall(inner[1] if inner else written)]
    if len(pieces) == len(values) and (inner or len(pieces) > 1):
        values = pieces
    return [f"{override.get_key_element()}={value}" for value in values]

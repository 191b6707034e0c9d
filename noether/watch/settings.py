"""The settings of runs, flat, and those in which runs differ. No torch here."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import yaml

from noether.watch.inside import opened_inside

T = TypeVar("T")
MOST_BYTES = 2**20
MOST_SETTINGS = 5000
_DEEPEST, _DEEPEST_LIST = 24, 3
OWN = ("run_id", "output_path", "resume")
"""Settings that say which run it is; they always differ."""


def flat_settings(root: Path, path: Path) -> dict[str, str]:
    """Returns the settings of a config.yaml by their dotted names, as text; none where it cannot be read.

    Limits in size, number and depth hold for a file that somebody wrote by hand: YAML's references can make a small
    file endless.
    """
    try:
        with opened_inside(root, path) as file:
            content = yaml.load(file.read(MOST_BYTES), _Loader)
    except (OSError, ValueError, RecursionError, yaml.YAMLError):
        return {}
    return dict(islice(_leaves("", content, _DEEPEST), MOST_SETTINGS)) if isinstance(content, Mapping) else {}


# The parser in C, where PyYAML has it: a page asks for many runs at once.
_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def _leaves(name: str, value: Any, deepest: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping) and value and deepest:
        for key, item in value.items():
            yield from _leaves(f"{name}.{key}" if name else str(key), item, deepest - 1)
    else:
        yield name, _text(value, _DEEPEST_LIST)


def _text(value: Any, deepest: int) -> str:
    if isinstance(value, (list, tuple)) and deepest:
        return "[" + ", ".join(_text(item, deepest - 1) for item in value[:100]) + "]"
    if isinstance(value, (Mapping, list, tuple)):
        return "{}" if not value else "…"
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)[:2000]


def differing(settings: Sequence[Mapping[str, str]]) -> dict[str, list[str | None]]:
    """Returns the settings in which runs differ, with each run's value; None where a run does not have it."""
    return {name: values for name, values in beside(settings).items() if name not in OWN and len(set(values)) > 1}


def beside(of_each: Sequence[Mapping[str, T]]) -> dict[str, list[T | None]]:
    """Returns settings or metrics by name, with each run's value; None where a run does not have it."""
    names = dict.fromkeys(name for one in of_each for name in one)
    return {name: [one.get(name) for one in of_each] for name in names}

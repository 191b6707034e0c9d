"""Parse the overrides of a run (Hydra's grammar), and suggest corrections for words that cannot be parsed."""

import os
import re
import shlex
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast, get_origin

from noether.common.errors import RequestError
from noether.common.numbers import is_number
from noether.common.suggest import nearest, plain_characters
from noether.config.explain import as_override, default_of, fields_of, members_of, resolve_alias, resolve_value
from noether.config.groups import lines_for, our_groups
from noether.config.layers import SearchPath, as_yaml, no_option
from noether.config.section import flat
from noether.config.sweep import as_typed, check_amount, parse_override
from noether.config.yaml_reader import SettingsYaml, parse_yaml

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

TYPED = "command line"
LONGEST_UNREAD = 1_000
"""The maximum length in characters of an unreadable word that an error shows in full and tries to correct."""


def parse_overrides(overrides: Sequence[str]) -> "list[Override]":
    """Parse the overrides of one run. RequestError: a word is not an override, or a setting has several values."""
    check_amount(overrides)
    parsed = []
    for place, text in enumerate(overrides):
        override = parse_override(text)
        key = override.key_or_group if override and override.package is None else ""
        unreadable = not key or key.endswith(".") or ("/" in key and fields_of(key.replace("/", ".")))
        if override is None or unreadable or (override.is_delete() and "=" in text):
            raise _unreadable(text, overrides[place + 1 : place + 3])
        if key.split(".")[0] == "hydra":
            raise RequestError(
                "setting-of-hydra",
                f"{key} is a setting of Hydra's own program, which does not run here",
                seen=text,
                expected="a setting that `noether help top-level` lists",
                fix=f"output_path={override.value()}"
                if key in ("hydra.run.dir", "hydra.sweep.dir")
                else f"leave {shlex.quote(text)} out",
            )
        if override.is_sweep_override():
            raise _several_values(text)
        parsed.append(override)
    return parsed


def _several_values(text: str) -> RequestError:
    key, _, value = text.partition("=")
    name, expected, fix = key.lstrip("+"), "one value", f"-m {shlex.quote(text)}      (a run for each value)"
    if not fields_of(name) and (meant := resolve_alias(name, value)):
        fix = str(meant)
    elif takes(name, tuple):
        expected, fix = "a list in brackets", f"{key}={shlex.quote(f'[{value}]')}"
    elif takes(name, str, Path):
        fix = f'{key}=\\"{value}\\"      (one text with commas; a sweep: -m {text})'
    elif re.search(",0+\\d", value) and (number := resolve_value(name, value)):  # 0,001 and 10,000 are not lists.
        fix = f"{key}={number}"
    return RequestError("setting-given-twice", f"{name} was given several values", seen=text,
                        expected=f"{expected}; a comma separates the values of a sweep", fix=fix)  # fmt: skip


def _unreadable(text: str, following: Sequence[str] = ()) -> RequestError:
    """Return the error for a word that is not an override. `following`: the next two words, such as `=` and a value."""
    if len(text) > LONGEST_UNREAD:
        raise RequestError("override-too-long", f"cannot read {len(text):,} characters", seen=f"{text[:40]}…",
                           expected="key=value, with a number of at most 20 digits, and few brackets",
                           fix=f"{text.partition('=')[0][:100]}=VALUE")  # fmt: skip
    after = following[: 1 + ("=" in following[:1])] if fields_of(text) else []
    if text.endswith(":"):  # YAML in several words: trainer: max_epochs: 3
        after = following[: 1 + following[0].endswith(":")] if following else []
    seen = " ".join([text, *after]) if after and "=" not in after[-1] and after[-1][0] not in "+~" else text
    if meant := _overrides_meant(plain_characters(seen).rstrip(",;")):
        fix = shlex.join(meant) + any('"' in one for one in meant) * "      (quoted twice: once for the shell)"
    elif (default := default_of(fields_of(text))) is not None:
        fix = shlex.quote(f"{text}={as_override(default)}")
    else:
        fix = _word_meant(text) or f"leave {shlex.quote(text)} out"
    return RequestError("unreadable-override", f"cannot read {seen!r}", seen=seen,
                        expected="key=value, +group=option or ~key", fix=fix)  # fmt: skip


def _overrides_meant(text: str) -> list[str]:
    """Return the overrides meant by a word that is YAML or JSON, joins several, or lacks the `=`; [] if unknown."""
    name, _, value = text.partition("=")
    if value.strip().startswith("{"):  # trainer={'max_epochs': 3}
        text = f"{name}: {value.replace('=', ': ')}"
    with suppress(RequestError):
        content = parse_yaml(re.sub(r":\s+(?=[\w.]+:)", ".", text), TYPED, SettingsYaml)  # trainer: max_epochs: 3
        if isinstance(content, dict):
            return [f"{key}={as_override(one)}" for key, one in flat(content)]
    pieces = re.split(r"[\s,;]+(?=[+~]*[\w./]+=)", text)
    if len(pieces) > 1 and all("=" in piece for piece in pieces):
        return pieces
    # trainer.max_epochs==3, trainer.max_epochs:3, trainer/max_epochs=3, trainer.max_epochs = 3, trainer['max_epochs']=3
    marked = re.sub(r"->|::|\[['\"]?(?=\w+['\"]?\]\s*=)", ".", text)
    parts = re.fullmatch(r"\+*([\w.:/-]+?)['\"]?\]?(\s*:?=+\s*|\s+|:(?!.*=))(.+)", marked)
    key = re.sub("[/:]", ".", parts[1]) if parts else ""
    if not parts or key.endswith(".") or not (fields_of(key) or text.startswith(f"{key}=")):
        return []
    return [f"{key}={as_typed(parts[3])}"]


def _word_meant(word: str) -> str:
    """Return the line to type instead of the name of a run, a file or an option; "" if the word is not such a name."""
    path, quoted = Path(word), shlex.quote(word)
    around = [one for place in (path, "runs" / path) if os.path.exists(place) for one in (place, *place.parents)]
    if run := next((one for one in around if (one / "config.yaml").is_file()), None):
        return f"resume={shlex.quote(str(run))}"
    if path.suffix in (".yaml", ".yml"):
        return f"--hp {quoted}"
    if path.suffix in (".toml", ".json") and path.is_file():
        return as_yaml(path) + f"      (then --hp {path.with_suffix('.yaml')})"
    if path.suffix in (".sh", ".sbatch", ".slurm"):
        return f"sbatch {quoted}      (noether lint {quoted} checks it)"
    own = ".".join(path.with_suffix("").parts)
    return (
        f"leave {quoted} out      (its class: model.kind={own}.CLASS)" if path.suffix == ".py" else _option_meant(word)
    )


def _option_meant(word: str, others: Sequence[str] = ()) -> str:
    """Return the override that chooses the option `word` and is valid with the overrides `others`, or ""."""
    from noether.config.compose import load_config

    known = [f"{group}/{one}" for group, options in our_groups().items() for one in options]
    lines = lines_for(word) or lines_for(word.rpartition("/")[2]) or lines_for(nearest(word, known) or "")
    for line in lines:
        with suppress(RequestError):
            load_config([*others, line])
            return line
    return ""


def chosen_options(overrides: "Sequence[Override]", path: SearchPath) -> dict[str, list[str]]:
    """Return {group: the options that the overrides choose}; the list is empty for a group left out by `~group`.

    RequestError: there is no such option or group.
    """
    chosen: dict[str, list[str]] = {}
    for override in overrides:
        group, value = override.key_or_group, cast(Any, override.value())
        if "/" in group or any((folder / group).is_dir() for folder in path.folders):
            if isinstance(value, dict):  # These are settings of a section, not an option of the group of the same name.
                raise _unreadable(str(override.input_line))
            chosen[group] = [] if override.is_delete() else value if isinstance(value, list) else [value]
            for option in chosen[group]:
                if not isinstance(option, str) or path.find(f"{group}/{option}") is None:
                    others = [str(one.input_line) for one in overrides if one is not override]
                    other = "" if path.options(group) else _option_meant(f"{group}/{option}", others)
                    raise no_option(group, str(option), path, str(override.input_line), other)
    return chosen


def setting_value(override: "Override") -> Any:
    """Return the value that an override gives to a setting.

    Hydra's grammar reads run_id=40_1 (an array's job and task) as the number 401; a setting of type text keeps "40_1".
    """
    value, written = override.value(), str(override.input_line).partition("=")[2].strip()
    if is_number(value) and takes(override.key_or_group, str, Path):
        return written
    if isinstance(value, int) and abs(value) >= 2**64:
        raise RequestError("number-too-long", f"{override.key_or_group} is a number of more than 64 bits",
                           seen=f"{written[:40]}…, of {len(written):,} digits", expected="at most 20 digits",
                           fix=f"{override.key_or_group}={written[:18]}")  # fmt: skip
    return value


def takes(key: str, *wanted: type) -> bool:
    """Return whether the schema has the setting `key` and accepts for it only values of the wanted types, or null."""
    found = [field.annotation for field in fields_of(key)]
    kinds = {get_origin(kind) or kind for one in found for kind in members_of(one)}
    return bool(kinds) and kinds <= {*wanted, type(None)}

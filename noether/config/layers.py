"""Finds the files that a run's settings consist of, by their `defaults` lists as Hydra reads them.

A `defaults` list names files (`/train`, `upt`), options of groups (`model: upt`, `/model: upt`, several, or null) and,
as `_self_`, the place of the file's own settings, which is else the last. Of a group that is listed twice, the last
counts. `override /model: upt`, and `model: upt` among a file's settings, choose another option where the group is
listed: of several choices the outermost counts, then the last; if no list has the group, it comes after all. A group's
settings belong to the section of its name or, after a first line `# @package _global_`, to the top. Other packages,
`optional` and interpolated names are refused.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.groups import DEFAULT_CONFIG, configs_folder, our_groups
from noether.config.settings_file import check_yaml


@dataclass(frozen=True)
class SettingsLayer:
    """Settings from one place, to be laid over those of the layers before it. `file` is None for the command line."""

    file: Path | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class SearchPath:
    """The folders in which groups are looked for: the one of the settings file, then ours."""

    folders: tuple[Path, ...]

    def options(self, group: str) -> list[str]:
        """Returns the options of a group: its files."""
        return sorted({file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")})

    def find(self, name: str, besides: Sequence[Path] = ()) -> Path | None:
        """Returns the file of `group/option`, or None where there is none besides those."""
        files = (folder / f"{name}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file() and file not in besides), None)


def layers_of(
    primary: Path, path: SearchPath, typed: Mapping[str, Sequence[str]], known: Mapping[str, Any] | None = None
) -> tuple[list[SettingsLayer], set[str]]:
    """Returns the layers of a settings file, the lowest first, and the groups that its lists have.

    `typed` has the options that the command line chooses, none for a group that it leaves out; `known` is the content
    of a file that was read already.

    RequestError: a list names what there is not, itself, or a form that is not supported.
    """
    chosen, appended = dict(typed), dict[str, Sequence[str]]()
    while True:
        walk = _Walk(primary, path, dict(chosen), known)
        layers = walk.layers(primary, appended=[_Entry("group", *one, one[0]) for one in appended.items()])
        absent = [group for group, options in walk.chosen.items() if options and group not in walk.listed]
        if absent:
            first = min(absent, key=lambda group: not group.startswith("experiment/"))  # It may list the others.
            appended[first] = walk.chosen[first]
        elif walk.chose_late:
            chosen = walk.chosen
        else:
            return layers, walk.listed


class _Entry(NamedTuple):
    """An entry of a `defaults` list. Of a group, `name` is the group; of files, it is empty. `section` has slashes."""

    kind: Literal["self", "files", "group", "override"]
    name: str
    options: Sequence[str]
    section: str


@dataclass
class _Walk:
    """One walk through all lists, from their ends, so that of several choices for a group the last is seen first."""

    primary: Path
    path: SearchPath
    chosen: dict[str, Sequence[str]]
    known: Mapping[str, Any] | None = None
    listed: set[str] = field(default_factory=set)
    chose_late: bool = False

    def layers(
        self,
        file: Path,
        folder: str = "",
        section: str = "",
        within: Sequence[Path] = (),
        appended: Sequence[_Entry] = (),
    ) -> list[SettingsLayer]:
        """Returns the layers of a file of the group `folder`, whose settings belong to `section`."""
        within = (*within, file)
        if self.known is not None and file == self.primary:
            content, package = deepcopy(dict(self.known)), None
        else:
            content, package = check_yaml(file), re.match(r"\s*#\s*@\s*package\s+(\S+)", file.read_text())
        if package and package[1] != "_global_":
            raise _unsupported(file, package[0])
        section = "" if package else section
        entries = [_entry(entry, file, folder, section) for entry in self._defaults(content, file)]
        if all(entry.kind != "self" for entry in entries):
            entries.append(_Entry("self", "", (), section))
        named = [] if section else [name for name, value in content.items() if isinstance(value, str)]
        choices: dict[str, Sequence[str]] = {
            name: [content.pop(name)] for name in named if (configs_folder() / str(name)).is_dir()
        }
        choices |= {entry.name: entry.options for entry in entries if entry.kind == "override"}
        self.chose_late |= bool((choices.keys() - self.chosen.keys()) & self.listed)
        self.chosen = choices | self.chosen
        found: list[SettingsLayer] = []
        for kind, group, options, inner in reversed([*entries, *appended]):
            if kind == "self":
                found.append(SettingsLayer(file, nested(section.replace("/", "."), content)))
            if kind in ("self", "override") or group in self.listed:
                continue
            if kind == "group":
                self.listed.add(group)
                options = self.chosen.get(group, options)
            for option in reversed(options):
                name = f"{group}/{option}".lstrip("/")
                child = self.path.find(name, within)  # One's own train.yaml may name ours.
                if child is None:
                    raise no_option(name, self.path)
                found += reversed(self.layers(child, name.rpartition("/")[0], inner, within))
        return found[::-1]

    def _defaults(self, content: dict[str, Any], file: Path) -> list[Any]:
        """Takes the `defaults` list out of a file's content; a settings file without one changes the default settings.

        Where it sets a section's `kind`, it has the whole section.
        """
        if file == self.primary and "defaults" not in content:
            whole = {name for name, section in content.items() if isinstance(section, dict) and "kind" in section}
            default = check_yaml(configs_folder() / DEFAULT_CONFIG)["defaults"]
            return [entry for entry in default if isinstance(entry, str) or not whole.intersection(entry)]
        listed = content.pop("defaults", None) or []
        return listed if isinstance(listed, list) else [listed]


def _entry(entry: Any, file: Path, folder: str, section: str) -> _Entry:
    key, value = next(iter(entry.items())) if isinstance(entry, dict) and len(entry) == 1 else (entry, entry)
    words = str(key)
    name = words.removeprefix("override ").strip()
    options = value if isinstance(value, list) else [] if value is None else [value]
    if not re.fullmatch(r"/?[\w.-]+(/[\w.-]+)*", name) or not all(isinstance(option, str) for option in options):
        raise _unsupported(file, str(entry))
    if entry == "_self_":
        return _Entry("self", "", (), section)
    full = name.lstrip("/") if name.startswith("/") else f"{folder}/{name}".lstrip("/")
    relative = name.strip("/") if isinstance(entry, dict) else name.strip("/").rpartition("/")[0]
    inner = "/".join(filter(None, (section, relative)))
    if not isinstance(entry, dict):
        return _Entry("files", "", [full], inner)
    return _Entry("override" if name != words else "group", full, options, inner)


def nested(name: str, content: Any) -> Any:
    """Returns the content as the sections of a dotted name."""
    for part in reversed(name.split(".") if name else []):
        content = {part: content}
    return content


def no_option(name: str, path: SearchPath, typed: str = "") -> RequestError:
    """Returns the refusal of `group/option`, which is no file; `typed` is the override that has it, if one has."""
    group, _, option = name.rpartition("/")
    options, plus = path.options(group), "+" * typed.startswith("+")
    known = [f"{group}/{one}" for group, options in our_groups().items() for one in options]
    if options and (nearest(option, options) or not typed):
        fix = f"{plus}{group}={nearest(option, options) or options[0]}"
    elif not options and typed and (near := nearest(name, known)):
        fix = f"+{near.rpartition('/')[0]}={near.rpartition('/')[2]}"
    else:
        fix = f"leave {shlex.quote(typed)} out" if typed else f"fix the defaults list that names {name}"
    return RequestError("unknown-configuration", f"no configuration {name!r}",
                        seen=typed or f"no {name}.yaml in {' or '.join(map(str, path.folders))}",
                        expected=f"one of {', '.join(options or our_groups())}", fix=fix)  # fmt: skip


def _unsupported(file: Path, seen: str) -> RequestError:
    return RequestError(
        "unsupported-default",
        f"{file.name} has defaults that cannot be read",
        seen=seen,
        expected="_self_, FILE, GROUP: OPTION or override /GROUP: OPTION, and as a first line # @package _global_",
        fix=f"leave {seen} out of {file}",
    )

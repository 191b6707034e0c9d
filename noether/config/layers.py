"""Finds the files that a run's settings consist of, by their `defaults` lists as Hydra reads them."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.explain import value_meant
from noether.config.groups import DEFAULT_CONFIG, configs_folder, lines_for, our_groups


class YamlLoader(yaml.SafeLoader):
    """YAML as people write it: 1e-3 is a number, a date is a text, and no key stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        """Refuses a mapping with a key that stands twice."""
        names = [name.value for name, _ in node.value]
        for place, (name, _) in enumerate(node.value):
            if name.value in names[:place]:
                raise yaml.MarkedYAMLError(problem=f"{name.value} stands twice", problem_mark=name.start_mark)
        return super().construct_mapping(node, deep)


YamlLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_WITH_EXPONENT = re.compile(r"[-+]?(\d[\d_]*(\.[\d_]*)?|\.\d[\d_]*)[eE][-+]?\d+$")
YamlLoader.add_implicit_resolver("tag:yaml.org,2002:float", _WITH_EXPONENT, list("-+.0123456789"))


def primary_file(hp: str | Path | None) -> Path:
    """Returns the file that `--hp` names, or for None the default configuration.

    RequestError: there is no such file, or its name does not end in .yaml.
    """
    if hp is None:
        return configs_folder() / DEFAULT_CONFIG
    path = Path(hp).expanduser().resolve()
    if path.is_file() and path.suffix == ".yaml":
        return path
    # The documented --hp configs/NAME.yaml should also find our own file outside a checkout, as in a container's /work.
    own = configs_folder() / path.name
    if not path.exists() and Path(hp).parent == Path("configs") and own.suffix == ".yaml" and own.is_file():
        return own
    if path.is_file():
        raise RequestError("not-a-yaml-name", f"{path.name} does not end in .yaml", seen=str(hp),
                           expected="a file named NAME.yaml", fix=as_yaml(Path(hp)))  # fmt: skip
    seen = f"{path} is a folder" if path.exists() else f"{path} does not exist"
    raise RequestError("no-configuration-file", f"no configuration file {hp}", seen=seen,
                       expected="a YAML file", fix=file_meant(str(hp)))  # fmt: skip


def as_yaml(path: Path) -> str:
    """Return the line that makes a settings file of one with another suffix: JSON is YAML too, and TOML is not."""
    source, target = shlex.quote(str(path)), shlex.quote(str(path.with_suffix(".yaml")))
    convert = "import sys, tomllib, yaml; yaml.safe_dump(tomllib.load(sys.stdin.buffer), sys.stdout)"
    return f"python -c '{convert}' < {source} > {target}" if path.suffix == ".toml" else f"mv {source} {target}"


def file_meant(hp: str) -> str:
    """Return the line for the name of a settings file: with its suffix, as it is spelled, or for one of our options."""
    typed, path = Path(hp), Path(hp).expanduser().resolve()
    beside = [file.name for file in path.parent.glob("*.y*ml") if file.is_file()] if path.parent.is_dir() else []
    if near := next((one for one in (path.name, f"{path.name}.yaml") if one in beside), nearest(path.name, beside)):
        return f"--hp {shlex.quote(str(typed.parent / near))}"
    name = DEFAULT_CONFIG if os.path.isdir(path) else f"{path.stem}.yaml"
    own = f"--hp configs/{name}" if (configs_folder() / name).is_file() else ""
    return own or next(iter(lines_for(hp)), f"--hp configs/{DEFAULT_CONFIG}      (or leave --hp out for it)")


def check_yaml(
    path: Path, read: Callable[[Path], bytes] = Path.read_bytes, loader: type[yaml.SafeLoader] = YamlLoader
) -> dict[str, Any]:
    """Returns the plain content of a file of settings.

    RequestError: it is not YAML, not UTF-8, or not keys and values.
    """
    try:
        content = yaml.load(read(path).decode(), loader)
    except yaml.YAMLError as error:
        raise _yaml_error(error, path) from None
    except RecursionError:
        wrong, seen = "is nested too deeply", "thousands of nested brackets"
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:  # From PyYAML, for odd dates and tags
        raise RequestError("settings-file-unreadable", f"cannot read {path}", seen=str(error),
                           expected="a YAML file in UTF-8",
                           fix=f"file {path}      (shows what it is)") from None  # fmt: skip
    else:
        if content is None or isinstance(content, dict):
            return content or {}
        wrong, seen = "contains no settings", f"a {type(content).__name__}"
    raise RequestError("settings-file-content", f"{path} {wrong}", seen=seen,
                       expected="keys and values, such as 'seed: 0'",
                       fix=f"--hp FILE      (another file than {path})")  # fmt: skip


def _yaml_error(error: yaml.YAMLError, path: Path) -> RequestError:
    """Returns an error that names the file and the line of broken YAML."""
    problem = " ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
    seen, where, mark = problem or str(error), str(path), getattr(error, "problem_mark", None)
    if mark is not None:
        where = f"{path}:{mark.line + 1}"
        lines = path.read_text(errors="replace").splitlines()
        if line := "".join(lines[mark.line : mark.line + 1]).strip():
            seen = f"{line}   ({problem})"
    return RequestError("invalid-yaml", f"{where} is not valid YAML", seen=seen,
                        expected="key: value, indented with spaces",
                        fix=f"fix {'line ' * (mark is not None)}{where}")  # fmt: skip


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
                    raise no_option(*name.rpartition("/")[::2], self.path)
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


def no_option(group: str, option: str, path: SearchPath, typed: str = "", fix: str = "") -> RequestError:
    """Return the refusal of an option that is no file; `typed` is the override that has it, if one has.

    `fix` is a line for another group's option of that name, which counts where this group has none like it.
    """
    options, plus = path.options(group), "+" * typed.startswith("+")
    stem = option.removesuffix(".yaml").rpartition("/")[2]
    meant = value_meant(group, stem)
    near = meant if meant in options else nearest(stem, options)
    if options and (near or not typed or len(options) == 1):
        fix = f"{plus}{group}={near or options[0]}"
    elif re.fullmatch(r"[A-Za-z_][\w/]*(\.[A-Za-z_]\w*)+(:\w+)?", option) and not option.endswith((".yaml", ".yml")):
        fix = f"{group}.kind={re.sub('[/:]', '.', option.replace('.py', ''))}"
    elif group == "dataset" and "/" in option:
        fix = f"dataset=cases {shlex.quote(f'dataset_root={option}')}"
    left_out = f"leave {shlex.quote(typed)} out" if typed else f"fix the defaults list that names {group}/{option}"
    return RequestError("unknown-configuration", f"no configuration {f'{group}/{option}'!r}",
                        seen=typed or f"no {group}/{option}.yaml in {' or '.join(map(str, path.folders))}",
                        expected=f"one of {', '.join(options or our_groups())}", fix=fix or left_out)  # fmt: skip


def _unsupported(file: Path, seen: str) -> RequestError:
    return RequestError(
        "unsupported-default", f"{file.name} has defaults that cannot be read", seen=seen,
        expected="_self_, FILE, GROUP: OPTION or override /GROUP: OPTION, and as a first line # @package _global_",
        fix=f"leave {seen} out of {file}",
    )  # fmt: skip

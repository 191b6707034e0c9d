"""The settings files of a run: a primary file, and the files in `defaults` lists, which are read as by Hydra."""

import os
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, NamedTuple

from noether.common.errors import RequestError
from noether.common.safe_open import read_given
from noether.common.suggest import nearest
from noether.config.explain import resolve_value
from noether.config.groups import DEFAULT_CONFIG, configs_folder, lines_for, our_groups
from noether.config.section import nested
from noether.config.yaml_reader import PlainYaml, SettingsYaml, parse_yaml


def primary_file(hp: str | Path | None) -> Path:
    """Return the path of the settings file that `--hp` names; for None, that of the default configuration.

    RequestError: there is no such file, or its name does not end in .yaml.
    """
    if hp is None:
        return configs_folder() / DEFAULT_CONFIG
    path = Path(hp).expanduser().resolve()
    if path.is_file() and path.suffix == ".yaml":
        return path
    # Outside a checkout, for example in a container's /work, --hp configs/NAME.yaml must still find noether's own file.
    own = configs_folder() / path.name
    if not path.exists() and Path(hp).parent == Path("configs") and own.suffix == ".yaml" and own.is_file():
        return own
    if path.is_file():
        raise RequestError("not-a-yaml-name", f"{path.name} does not end in .yaml", seen=str(hp),
                           expected="a file named NAME.yaml", fix=as_yaml(Path(hp)))  # fmt: skip
    raise RequestError("no-configuration-file", f"no configuration file {hp}", seen=f"{hp} {_what_is_there(Path(hp))}",
                       expected="a YAML file", fix=file_meant(str(hp)))  # fmt: skip


def as_yaml(path: Path) -> str:
    """Return the command that turns a settings file into YAML. It converts TOML and renames JSON, which is YAML."""
    source, target = shlex.quote(str(path)), shlex.quote(str(path.with_suffix(".yaml")))
    convert = "import sys, tomllib, yaml; yaml.safe_dump(tomllib.load(sys.stdin.buffer), sys.stdout)"
    return f"python -c '{convert}' < {source} > {target}" if path.suffix == ".toml" else f"mv {source} {target}"


def file_meant(hp: str) -> str:
    """Return the line to type instead of a misspelled settings file: a file with a similar name, or an option."""
    typed, path = Path(hp), Path(hp).expanduser().resolve()
    beside = [file.name for file in path.parent.glob("*.y*ml") if file.is_file()] if path.parent.is_dir() else []
    if near := next((one for one in (path.name, f"{path.name}.yaml") if one in beside), nearest(path.name, beside)):
        return f"--hp {shlex.quote(str(typed.parent / near))}"
    name = DEFAULT_CONFIG if os.path.isdir(path) else f"{path.stem}.yaml"
    own = f"--hp configs/{name}" if (configs_folder() / name).is_file() else ""
    return own or next(iter(lines_for(hp)), f"--hp configs/{DEFAULT_CONFIG}      (or leave --hp out for it)")


def _what_is_there(path: Path) -> str:
    if path.is_fifo():
        return "is a pipe, which is read once, and not by a job"
    return "is a folder" if path.is_dir() else "is a device or a socket" if path.exists() else "does not exist"


@contextmanager
def kept_pipe(pipe: str) -> Iterator[str]:
    """Copy the settings of a pipe (`--hp <(…)`), which can be read only once, to a temporary file; yield its path.

    RequestError: the settings cannot be read.
    """
    _, text = read_settings(Path(pipe))
    with TemporaryDirectory(prefix="noether-") as folder:
        file = Path(folder) / "from-pipe.yaml"
        file.write_text(text)
        yield str(file)


def read_settings(
    path: Path, read: Callable[[Path, int], bytes] = read_given, kind: type[PlainYaml] = SettingsYaml
) -> tuple[dict[str, Any], str]:
    """Return the parsed content of a settings file, and its text.

    RequestError: the file is not YAML within the limits of `kind`, is not UTF-8, or does not contain keys and values.
    """
    try:
        text = read(path, kind.most_bytes).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RequestError("settings-file-unreadable", f"cannot read {path}",
                           seen=getattr(error, "strerror", None) or str(error),
                           expected=f"a YAML file in UTF-8 of at most {kind.most_bytes:,} bytes",
                           fix=f"file {path}      (shows what it is)") from None  # fmt: skip
    content = parse_yaml(text, str(path), kind)
    if content is None or isinstance(content, dict):
        return content or {}, text
    raise RequestError("settings-file-content", f"{path} contains no settings", seen=f"a {type(content).__name__}",
                       expected="keys and values, such as 'seed: 0'",
                       fix=f"--hp FILE      (another file than {path})")  # fmt: skip


@dataclass(frozen=True)
class SettingsLayer:
    """The settings from one source, which override those of the lower layers. `file`: None for the command line."""

    file: Path | None
    settings: dict[str, Any]


@dataclass(frozen=True)
class SearchPath:
    """The folders that are searched for groups: the folder of the settings file, then noether's own."""

    folders: tuple[Path, ...]

    def options(self, group: str) -> list[str]:
        """Return the options of a group: the names of its files."""
        return sorted({file.stem for folder in self.folders for file in (folder / group).glob("*.yaml")})

    def find(self, name: str, besides: Sequence[Path] = ()) -> Path | None:
        """Return the first file of `group/option` that is not in `besides`; None if there is no such file."""
        files = (folder / f"{name}.yaml" for folder in self.folders)
        return next((file for file in files if file.is_file() and file not in besides), None)


def layers_of(
    primary: Path, path: SearchPath, typed: Mapping[str, Sequence[str]], known: Mapping[str, Any] | None = None
) -> tuple[list[SettingsLayer], set[str]]:
    """Return the layers of a settings file, the lowest first, and the groups that its `defaults` lists name.

    typed: {group: the options that the command line chooses}; without options, the group is left out.
    known: the content of the primary file, if the file has been read already.
    RequestError: a list names a missing file or itself, or has an unsupported form.
    """
    chosen, appended = dict(typed), dict[str, Sequence[str]]()
    while True:
        walk = _Walk(primary, path, dict(chosen), known)
        layers = walk.layers(primary, appended=[_Entry("group", *one, one[0]) for one in appended.items()])
        absent = [group for group, options in walk.chosen.items() if options and group not in walk.listed]
        if absent:
            first = min(absent, key=lambda group: not group.startswith("experiment/"))  # An experiment may list others.
            appended[first] = walk.chosen[first]
        elif walk.chose_late:
            chosen = walk.chosen
        else:
            return layers, walk.listed


class _Entry(NamedTuple):
    """An entry of a `defaults` list. `name`: the group, "" for files. `section`: the section's name, with slashes."""

    kind: Literal["self", "files", "group", "override"]
    name: str
    options: Sequence[str]
    section: str


@dataclass
class _Walk:
    """A walk through all `defaults` lists, each from its end, because the last choice for a group takes effect."""

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
        """Return the layers of a file in the group `folder`, whose settings belong to `section`; the lowest first."""
        within = (*within, file)
        if self.known is not None and file == self.primary:
            content, package = deepcopy(dict(self.known)), None
        else:
            content, text = read_settings(file)
            package = re.match(r"\s*#\s*@\s*package\s+(\S+)", text)
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
                child = self.path.find(name, within)  # A user's train.yaml may list noether's train.yaml.
                if child is None:
                    raise no_option(*name.rpartition("/")[::2], self.path)
                found += reversed(self.layers(child, name.rpartition("/")[0], inner, within))
        return found[::-1]

    def _defaults(self, content: dict[str, Any], file: Path) -> list[Any]:
        """Remove and return a file's `defaults` list. A settings file without a list gets the list of train.yaml.

        Each section whose `kind` the file sets is omitted from that list, because the file defines the whole section.
        """
        if file == self.primary and "defaults" not in content:
            whole = {name for name, section in content.items() if isinstance(section, dict) and "kind" in section}
            default = read_settings(configs_folder() / DEFAULT_CONFIG)[0]["defaults"]
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


def no_option(group: str, option: str, path: SearchPath, typed: str = "", fix: str = "") -> RequestError:
    """Return the error for an option that has no file. `typed`: the override that names the option, if any.

    fix: the line that chooses an option of this name in another group, used if this group has no similar option.
    """
    options, plus = path.options(group), "+" * typed.startswith("+")
    stem = option.removesuffix(".yaml").rpartition("/")[2]
    meant = resolve_value(group, stem)
    near = meant if meant in options else nearest(stem, options)
    if options and (near or not typed or len(options) == 1):
        fix = f"{plus}{group}={near or options[0]}"
    elif meant and "." in meant:
        fix = f"{group}.kind={meant}"
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

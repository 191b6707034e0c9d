"""Finds and reads the settings file (`--hp`)."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from noether.common.errors import RequestError
from noether.common.suggest import nearest
from noether.config.groups import DEFAULT_CONFIG, configs_folder


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
                           expected="a file named NAME.yaml",
                           fix=f"mv {hp} {Path(hp).with_suffix('.yaml')}")  # fmt: skip
    beside = (file.name for file in path.parent.glob("*.y*ml") if file.is_file()) if path.parent.is_dir() else ()
    near = nearest(path.name, beside)
    raise RequestError(
        "no-configuration-file",
        f"no configuration file {hp}",
        seen=f"{path} does not exist" if not path.exists() else f"{path} is a folder",
        expected="a YAML file",
        fix=f"--hp {Path(hp).parent / near}" if near else "--hp configs/train.yaml      (or leave --hp out for it)",
    )


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

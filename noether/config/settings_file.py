"""Finds and reads the settings file (`--hp`), and finds the folder of the configuration groups."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from noether.common.suggest import nearest
from noether.config.trainer import LENGTHS
from noether.errors import RequestError

DEFAULT_CONFIG = "train.yaml"


def configs_folder() -> Path:
    """Returns the folder of the configuration groups, in the checkout or in the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "configs", package / "configs"):
        if (folder / DEFAULT_CONFIG).is_file():
            return folder
    raise FileNotFoundError(f"no configs folder beside {package} or in it")


def primary_file(hp: str | Path | None) -> Path:
    """Returns the file that `--hp` names, or for None the default configuration.

    Raises:
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
        raise RequestError(
            "not-a-yaml-name",
            f"{path.name} does not end in .yaml",
            seen=str(hp),
            expected="a file named NAME.yaml",
            fix=f"mv {hp} {Path(hp).with_suffix('.yaml')}",
        )
    beside = (file.name for file in path.parent.glob("*.y*ml") if file.is_file()) if path.parent.is_dir() else ()
    near = nearest(path.name, beside)
    raise RequestError(
        "no-configuration-file",
        f"no configuration file {hp}",
        seen=f"{path} does not exist" if not path.exists() else f"{path} is a folder",
        expected="a YAML file",
        fix=f"--hp {Path(hp).parent / near}" if near else "--hp configs/train.yaml      (or leave --hp out for it)",
    )


@contextmanager
def with_defaults(path: Path) -> Iterator[Path]:
    """Yields a copy of the file with the default configuration's `defaults` list, or the file itself if it has one.

    If a section sets its `kind`, the default configuration's settings for that section are left out, as they belong to
    another kind. `model: upt` chooses from a group, like `model=upt` on the command line. A run length in the file
    replaces the default one.
    """
    own: Any = OmegaConf.load(path)
    chosen = {
        name: value for name, value in own.items() if isinstance(value, str) and (configs_folder() / str(name)).is_dir()
    }
    if "defaults" in own:
        for name, value in chosen.items():
            raise RequestError(
                "name-for-a-section",
                f"{name} is a section, but {path.name} sets it to a name",
                seen=f"{name}: {value}",
                expected=f"the name of one of {name}'s files in the `defaults` list, or the section's own keys",
                fix=f"defaults: [..., override /{name}: {value}, _self_]      (in {path.name}; and leave {name}: out)",
            )
        yield path
        return
    base: Any = OmegaConf.load(configs_folder() / DEFAULT_CONFIG)
    whole = {name for name, section in own.items() if OmegaConf.is_dict(section) and "kind" in section}
    entries = [entry for entry in base["defaults"] if isinstance(entry, str) or not whole.intersection(entry)]
    for name in chosen:
        del own[name]
    own["defaults"] = [
        entry if isinstance(entry, str) else {name: chosen.get(name, option) for name, option in entry.items()}
        for entry in entries
    ]
    trainer = own.get("trainer")
    if OmegaConf.is_dict(trainer) and any(trainer.get(name) is not None for name in LENGTHS):
        own["trainer"] = {**dict.fromkeys(LENGTHS), **trainer}
    with tempfile.TemporaryDirectory(prefix="noether-") as folder:
        copy = Path(folder) / "settings.yaml"
        OmegaConf.save(own, copy)
        yield copy


def check_yaml(path: Path, read: Callable[[Path], bytes] = Path.read_bytes) -> dict[str, Any]:
    """Returns the plain content of a file, because Hydra's message for broken YAML names neither file nor line.

    Raises:
        RequestError: it is not YAML, not UTF-8, or not keys and values.
    """
    try:
        content = yaml.safe_load(read(path).decode())
    except yaml.YAMLError as error:
        raise yaml_error(error, path) from None
    except RecursionError:
        wrong, seen = "is nested too deeply", "thousands of nested brackets"
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:  # From PyYAML, for odd dates and tags
        raise RequestError(
            "settings-file-unreadable",
            f"cannot read {path}",
            seen=str(error),
            expected="a YAML file in UTF-8",
            fix=f"file {path}      (shows what it is)",
        ) from None
    else:
        if content is None or isinstance(content, dict):
            return content or {}
        wrong, seen = "contains no settings", f"a {type(content).__name__}"
    raise RequestError(
        "settings-file-content",
        f"{path} {wrong}",
        seen=seen,
        expected="keys and values, such as 'seed: 0'",
        fix=f"--hp FILE      (another file than {path})",
    )


def yaml_error(error: yaml.YAMLError, path: Path) -> RequestError:
    """Returns an error that names the file and the line of broken YAML."""
    problem = " ".join(part for part in (getattr(error, "context", None), getattr(error, "problem", None)) if part)
    seen, where, mark = problem or str(error), str(path), getattr(error, "problem_mark", None)
    if mark is not None:
        file = Path(mark.name) if mark.name and Path(mark.name).is_file() else path
        where = f"line {file}:{mark.line + 1}"
        lines = file.read_text(errors="replace").splitlines()
        if line := "".join(lines[mark.line : mark.line + 1]).strip():
            seen = f"{line}   ({problem})"
    return RequestError(
        "invalid-yaml",
        f"{where.removeprefix('line ')} is not valid YAML",
        seen=seen,
        expected="key: value, indented with spaces",
        fix=f"fix {where}",
    )

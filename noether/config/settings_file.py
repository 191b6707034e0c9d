"""Finds and reads the file of settings (`--hp`), and the folder of the configuration groups."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from noether.common.suggest import nearest
from noether.config.explain import yaml_error
from noether.config.trainer import LENGTHS
from noether.errors import RequestError

DEFAULT_CONFIG = "train.yaml"


def configs_folder() -> Path:
    """Returns the folder of the configuration groups: the checkout's, or the one inside an installed wheel."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "configs", package / "configs"):
        if (folder / DEFAULT_CONFIG).is_file():
            return folder
    raise FileNotFoundError(f"no configs folder beside {package} or in it")


def primary_file(hp: str | Path | None) -> Path:
    """Returns the file that `--hp` names, the default configuration for None.

    Raises:
        RequestError: there is no such file, or its name does not end in .yaml.
    """
    if hp is None:
        return configs_folder() / DEFAULT_CONFIG
    path = Path(hp).expanduser().resolve()
    if path.is_file() and path.suffix == ".yaml":
        return path
    # The documented --hp configs/NAME.yaml means our own file outside a checkout too: in a container's /work, say.
    own = configs_folder() / path.name
    if not path.exists() and Path(hp).parent == Path("configs") and own.suffix == ".yaml" and own.is_file():
        return own
    if path.is_file():
        raise RequestError(
            f"{path.name} does not end in .yaml",
            seen=str(hp),
            expected="a file named NAME.yaml",
            fix=f"mv {hp} {Path(hp).with_suffix('.yaml')}",
        )
    beside = (file.name for file in path.parent.glob("*.y*ml") if file.is_file()) if path.parent.is_dir() else ()
    near = nearest(path.name, beside)
    raise RequestError(
        f"no configuration file {hp}",
        seen=f"{path} does not exist" if not path.exists() else f"{path} is a folder",
        expected="a YAML file",
        fix=f"--hp {Path(hp).parent / near}" if near else "--hp configs/train.yaml      (or leave --hp out for it)",
    )


@contextmanager
def with_defaults(path: Path) -> Iterator[Path]:
    """Gives a file without a `defaults` list that of the default configuration, in a copy.

    A section that names its `kind` stands alone: what the default sets there belongs to another kind. `model: upt`
    chooses from a group as `model=upt` does on the command line. A length of the run replaces the default's.
    """
    own: Any = OmegaConf.load(path)
    chosen = {
        name: value for name, value in own.items() if isinstance(value, str) and (configs_folder() / str(name)).is_dir()
    }
    if "defaults" in own:
        for name, value in chosen.items():
            raise RequestError(
                f"{name} is a section, and {path.name} sets it to a name",
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


def check_yaml(path: Path) -> None:
    """Reads the file once on its own: Hydra's message for broken YAML names neither file nor line.

    Raises:
        RequestError: not YAML, not UTF-8, or not keys and values.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise yaml_error(error, path) from None
    except RecursionError:
        raise RequestError(
            f"{path} is nested too deeply",
            seen="brackets within brackets, thousands deep",
            expected="keys and values, such as 'seed: 0'",
            fix=f"--hp FILE      (another file than {path})",
        ) from None
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:  # PyYAML's own, for odd dates and tags
        raise RequestError(
            f"cannot read {path}",
            seen=str(error),
            expected="a YAML file in UTF-8",
            fix=f"file {path}      (shows what it is)",
        ) from None
    if content is not None and not isinstance(content, dict):
        raise RequestError(
            f"{path} holds no settings",
            seen=f"a {type(content).__name__}",
            expected="keys and values, such as 'seed: 0'",
            fix=f"--hp FILE      (another file than {path})",
        )

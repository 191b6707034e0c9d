"""The configuration groups and their options, found in the folder `configs`. Imports only the standard library."""

from pathlib import Path

DEFAULT_CONFIG = "train.yaml"

LAUNCH_SETTINGS = ("accelerator", "devices", "nodes", "node_rank", "master_addr", "master_port", "distributed", "slurm")
"""The settings that `noether run` accepts: they choose where a script runs, not what it does."""


def configs_folder() -> Path:
    """Return the folder of the configuration groups, in the checkout or in the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "configs", package / "configs"):
        if (folder / DEFAULT_CONFIG).is_file():
            return folder
    raise FileNotFoundError(f"no configs folder beside {package} or in it")


def our_groups() -> dict[str, list[str]]:
    """Return {group: its options} for the groups that noether provides."""
    groups: dict[str, list[str]] = {}
    for file in sorted(configs_folder().glob("*/**/*.yaml")):
        groups.setdefault(file.parent.relative_to(configs_folder()).as_posix(), []).append(file.stem)
    return groups


def lines_for(word: str) -> list[str]:
    """Return the overrides that choose the option named by a word or path: quick, upt.yaml or configs/model/upt."""
    name = word.removesuffix(".yaml").removesuffix(".yml").removeprefix("configs/").rstrip("/")
    found = [(group, one) for group, options in our_groups().items() for one in options]
    lines = [
        f"{'+' * ('/' in group)}{group}={one}" for group, one in found if f"/{group}/{one}/".find(f"/{name}/") >= 0
    ]
    return sorted(lines, key=lambda line: line[0] == "+") if name and name not in our_groups() else []

"""The folder of the configuration groups and their options, found with the standard library alone."""

from pathlib import Path

DEFAULT_CONFIG = "train.yaml"


def configs_folder() -> Path:
    """Return the folder of the configuration groups, in the checkout or in the installed package."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "configs", package / "configs"):
        if (folder / DEFAULT_CONFIG).is_file():
            return folder
    raise FileNotFoundError(f"no configs folder beside {package} or in it")


def our_groups() -> dict[str, list[str]]:
    """Return the options of each group in our folder."""
    groups: dict[str, list[str]] = {}
    for file in sorted(configs_folder().glob("*/**/*.yaml")):
        groups.setdefault(file.parent.relative_to(configs_folder()).as_posix(), []).append(file.stem)
    return groups

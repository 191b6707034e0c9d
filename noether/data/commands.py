"""What `noether data prepare|pack|describe` do, with a bar while they work. torch only where a data set needs it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from noether.common.console import Console
from noether.common.cpus import usable_cpus
from noether.common.dotted_path import code_granted
from noether.common.flags import number_of
from noether.common.strict_json import strict_json
from noether.common.suggest import nearest
from noether.config.dataset import ShapeNetCarDatasetConfig
from noether.config.schema import RunConfig
from noether.data.build import data_source, open_splits
from noether.data.cases.case_map import ready_maps
from noether.data.cases.commands import prepare_cases_here, warn_few
from noether.data.describe import describe_split
from noether.data.progress import prepare_with_bar
from noether.data.shapenet_car import differing_statistics
from noether.data.shapenet_car_cases import ALL_CARS
from noether.errors import ExitCode, RequestError

SHAPENET_CAR = "shapenet_car"


def prepare_here(
    paths: Sequence[str], *, map_name: str | None, workers: str | None, skip_broken: bool, dry_run: bool
) -> int:
    """Prepares a folder of cases by a map: `CASES OUT`, or the map first, as in `shapenet_car ARCHIVE OUT`.

    RequestError: there are too few or too many words, no map was given, or the source does not fit it.
    """
    count, known = read_workers(workers), ready_maps()
    if len(paths) == 3 and map_name is None:
        map_name, *paths = paths
        if map_name not in known and not Path(map_name).is_file():
            raise RequestError(
                "unknown-map",
                f"there is no map {map_name}",
                seen=map_name,
                expected="a file that `noether data inspect` writes, or " + ", ".join(known),
                fix=" ".join(["noether data prepare", nearest(map_name, known) or "MAP", *paths]),
            )
    if len(paths) != 2:
        named = f"{paths[0]} {paths[0].rstrip('/')}-prepared" if len(paths) == 1 else "CASES OUT"
        form = f"{SHAPENET_CAR} SOURCE OUT" if SHAPENET_CAR in paths else f"CASES OUT --map {map_name or 'cases.yaml'}"
        raise RequestError(
            "prepare-needs-two-folders",
            "two folders are needed: the one with the cases, and the one to make",
            seen=" ".join(paths) or "none",
            expected=f"noether data prepare {form}",
            fix=f"noether data prepare {form.replace('CASES OUT', named)}",
        )
    source, out = paths
    if map_name is None:
        raise RequestError(
            "prepare-needs-a-map",
            "prepare needs a map, which says what the files hold",
            seen="no --map",
            expected="a file that inspect writes, or a ready map: " + ", ".join(known),
            fix=f"noether data inspect {source} && noether data prepare {source} {out} --map cases.yaml",
        )
    return prepare_cases_here(source, out, map_name, workers=count, skip_broken=skip_broken, dry_run=dry_run)


def read_workers(workers: str | None) -> int:
    """Returns how many processes share the work: as asked, else one a CPU, at most 16. RequestError: no number."""
    few = min(usable_cpus(), 16)
    return few if workers is None else number_of("workers", workers, int, 1, 10**4, f"--workers {few}")


def describe_here(config: RunConfig, *, as_json: bool) -> int:
    """Prints what the splits of the configured data set hold."""
    console = Console(None, speaks=not as_json)
    folder = prepare_with_bar(config, console)
    with code_granted(config.own_code()):
        splits = open_splits(config, folder)
    described = {"train": describe_split(splits.train), "test": describe_split(splits.test)}
    notes = _statistics_notes(config, described["train"])
    if as_json:
        about = {"dataset": config.dataset.kind, "data": str(folder), **described, "notes": notes}
        print(strict_json(about, indent=2))
        return ExitCode.DONE
    console.say(f"{config.dataset.kind}: {folder if folder is not None else data_source(config).without_root}")
    if config.dataset.validation_fraction:
        console.say(f"a share of {config.dataset.validation_fraction:g} of the training split is held out to validate")
    for name, split in described.items():
        table = Table(
            "key", "shape", "type", "channel", "min", "max", "mean", "std", box=None, padding=(0, 2, 0, 0),
            title=f"{name}: {split['samples']} samples", title_justify="left",
        )  # fmt: skip
        for key, about in split["arrays"].items():
            for channel, row in enumerate(about["channels"]):
                head = [key, about["shape"], about["dtype"]] if channel == 0 else ["", "", ""]
                numbers = [f"{row[name]:.6g}" for name in ("min", "max", "mean", "std")]
                table.add_row(*head, str(channel) if len(about["channels"]) > 1 else "", *numbers)
        console.say("", table, sep="\n")
    for note in notes:
        console.say(note)
    warn_few(console, [f"{name} split, {words}" for name, split in described.items() for words in split["faults"]])
    return ExitCode.DONE


def _statistics_notes(config: RunConfig, train: dict[str, Any]) -> list[str]:
    """For ShapeNet-Car, how the statistics stand to the published constants of the split param0."""
    if not isinstance(config.dataset, ShapeNetCarDatasetConfig):
        return []
    if config.dataset.split != "param0":
        return ["the published constants are those of the split param0"]
    differing = differing_statistics(train["arrays"])
    if not differing:
        return ["mean and standard deviation are the published ones, within 1 % of a standard deviation"]
    found = train["samples"]
    why = f" ({found} of the {ALL_CARS - 100} training cars are here)" if found != ALL_CARS - 100 else ""
    return [f"statistics differ from the published constants{why}:", *(f"  {words}" for words in differing)]

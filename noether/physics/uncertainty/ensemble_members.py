"""Find the runs of an ensemble, by name or from a sweep, and check that they fit together. Does not import torch."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from noether.checkpoints.run_settings import ChosenModel, say_of_settings
from noether.common.errors import RequestError
from noether.runs.folder import RunFolder, checkpoint_paths, is_run
from noether.runs.records import parse_calibration, parse_record


def named_runs(words: Sequence[str]) -> list[str]:
    """Return the runs that the words name: a word is a run, a folder of runs, or a sweep (NAME.sweep.json or NAME).

    In a folder of runs, leave out the runs without a checkpoint and print their names. If no run has one, keep all.
    """
    found: dict[str, None] = {}
    for word in words:
        path = Path(word).expanduser()
        places = [place for place in (path, Path("runs") / path) if place.name]
        sweeps = [one for place in places for one in (place, place.with_name(f"{place.name}.sweep.json"))]
        sweep = next((one for one in sweeps if one.name.endswith(".sweep.json") and one.is_file()), None)
        if any(map(is_run, (path, *places))):
            found[word] = None
            if sweep is not None:
                say_of_settings(f"{word} names a run and a sweep: the run is used; for the sweep's runs, give {sweep}")
        elif sweep is not None:
            found |= dict.fromkeys(_runs_of(sweep))
        elif path.is_dir() and (inside := sorted(path.glob("*/config.yaml"))):
            runs = [config.parent for config in inside]
            trained = [run for run in runs if checkpoint_paths(RunFolder(run).checkpoints)] or runs
            if empty := [run.name for run in runs if run not in trained]:
                say_of_settings(f"{word}: left out because they have no checkpoint: {', '.join(empty)}")
            found |= dict.fromkeys(map(str, trained))
        else:
            found[word] = None
    return list(found)


def _runs_of(sweep: Path) -> list[str]:
    try:
        return [str(sweep.parent / Path(run["run"]).name) for run in parse_record(sweep)["runs"]]
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise RequestError("sweep-damaged", f"{sweep} does not list its runs",
                           seen=f"{type(error).__name__}: {error}", expected="the unmodified file of a sweep",
                           fix=f"give the names of the runs instead of {sweep.name}") from None  # fmt: skip


def record_path(chosen: Sequence[ChosenModel]) -> Path:
    """Return the path of the calibration: a file in the first run, named by a digest of all checkpoints in order."""
    names = [f"{one.checkpoint.meta()['meta_sha256']} {one.weights}" for one in chosen]
    return chosen[0].folder.evaluation / f"intervals-{sha256(' '.join(names).encode()).hexdigest()[:12]}.json"


def read_calibration(chosen: Sequence[ChosenModel]) -> dict[str, Any] | None:
    """Return the stored calibration of these checkpoints; None if it is missing or this version cannot read it."""
    try:
        return parse_calibration(record_path(chosen))
    except (OSError, ValueError):
        return None


def check_members(chosen: Sequence[ChosenModel]) -> None:
    """Raise RequestError if the runs cannot form one ensemble because they differ in their data or their outputs."""
    first = chosen[0]

    def described(one: ChosenModel) -> dict[str, Any]:
        config = one.config.model_dump(mode="json")
        dataset = {key: value for key, value in config["dataset"].items() if key not in DRAWN}
        task = {key: config["task"].get(key) for key in ("kind", "scalars")}
        fields = (config["task"].get("fields") or {}).items()
        task["fields"] = {name: {**field, "weight": None} for name, field in fields}
        return {"data": one.checkpoint.meta()["data"], "dataset": dataset, "task": task}

    known = described(first)
    for one in chosen[1:]:
        for what, own in described(one).items():
            if own != known[what]:
                raise RequestError(
                    "runs-do-not-fit-together",
                    f"{first.folder.path} and {one.folder.path} cannot form one ensemble: they differ in {what}",
                    seen=f"{differing(known[what], own)}",
                    expected="runs on the same data and the same held-out cases, with the same outputs",
                    fix=f"leave {one.folder.path} out",
                )


DRAWN = ("points_per_update", "geometry_points")
"""Settings of a data set that choose the points of a case and not the cases; the runs may differ in these settings."""


def differing(first: Any, second: Any) -> str:
    """Return the first entry in which two descriptions differ, as "NAME: FIRST and SECOND"."""
    if not isinstance(first, Mapping) or not isinstance(second, Mapping):
        return f"{first} and {second}"
    name = next(key for key in {**first, **second} if first.get(key) != second.get(key))
    return f"{name}: {first.get(name)} and {second.get(name)}"

"""The commands `noether data inspect|prepare|describe`, with progress bars; torch is imported only if needed."""

import os
import shlex
import shutil
import tarfile
import time
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rich.table import Table

from noether.common.console import Console
from noether.common.cpus import usable_cpus
from noether.common.dotted_path import code_granted
from noether.common.errors import ExitCode, RequestError, one_line
from noether.common.numbers import first_of, strict_json
from noether.common.suggest import number_of
from noether.config.explain import as_override
from noether.config.schema import RunConfig
from noether.core.data.build import data_source, open_splits, prepare_with_bar, progress_bar
from noether.core.data.checks import describe_split
from noether.core.data.shared_work import locked
from noether.physics.cars.shapenet_car import ALL_CARS, differing_statistics
from noether.physics.cases.case_map import map_text, parse_map, ready_maps
from noether.physics.cases.cells import in_no_set, range_text
from noether.physics.cases.dataset import DATASET_FILE
from noether.physics.cases.draft import DOUBT, GUESS, draft_map, words_of_steps
from noether.physics.cases.prepare import PreparedCases, plan_cases, prepare_cases
from noether.physics.cases.store import whole_folder
from noether.physics.cases.survey import BlockFacts, Survey, arrays_of, survey_folder
from noether.physics.settings import ShapeNetCarDatasetConfig

FOLDER = ".unpacked"
SUFFIXES = (".zip", ".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
UNREADABLE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, RuntimeError, IndexError)
"""Errors that Python raises on unreadable archives, such as RuntimeError on encryption or IndexError on empty names."""


def is_archive(path: Path) -> bool:
    """Return whether a path is a file with an archive's suffix."""
    return path.is_file() and path.name.lower().endswith(SUFFIXES)


@contextmanager
def unpacked(archive: Path, out: Path) -> Iterator[Path]:
    """Yield the folder `OUT/.unpacked` with the archive's files; remove it afterwards if no exception was raised.

    After an interruption the folder remains, so that the archive need not be unpacked again. Files keep their times of
    modification, which show whether cases are up to date. RequestError: the archive cannot be unpacked completely.
    """
    folder = out / FOLDER
    with locked(out, f".{FOLDER}.*.partial"):
        if not folder.is_dir():
            with whole_folder(folder) as partial:
                _extract(archive, partial)
                for inner in sorted(path for path in partial.rglob("*") if is_archive(path)):
                    _extract(inner, inner.parent)
                    inner.unlink()
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def _extract(archive: Path, folder: Path) -> None:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for entry in zipped.infolist():
                    path = zipped.extract(entry, folder)  # zipfile sanitizes paths that lead out of the folder.
                    changed = time.mktime((*entry.date_time, 0, 0, -1))
                    os.utime(path, (changed, changed))
        else:
            with tarfile.open(archive) as tar:
                if hasattr(tarfile, "data_filter"):
                    tar.extractall(folder, filter="data")
                else:
                    tar.extractall(folder, _inside(tar, folder))
    except UNREADABLE as error:
        raise RequestError(
            "archive-unreadable", f"{archive} cannot be unpacked", seen=f"{type(error).__name__}: {one_line(error)}",
            expected="a complete .zip or .tar archive, and enough disk space for its files",
            fix="download the archive again, or give a folder with the unpacked files",
        ) from error  # fmt: skip


def _inside(tar: tarfile.TarFile, folder: Path) -> Iterator[tarfile.TarInfo]:
    """Yield an archive's members after the checks of `filter="data"`, new in Python 3.11.4. TarError: one is unsafe."""
    root = os.path.realpath(folder)
    for member in tar:
        place = os.path.realpath(os.path.join(root, member.name))
        beside = os.path.dirname(place) if member.issym() else root
        target = os.path.realpath(os.path.join(beside, member.linkname)) if member.linkname else place
        if any(os.path.commonpath((root, end)) != root for end in (place, target)) or member.isdev():
            raise tarfile.TarError(f"{member.name} leads out of the folder")
        member.mode |= 0o700 if member.isdir() else 0o600
        member.uid, member.gid, member.uname, member.gname = os.getuid(), os.getgid(), "", ""
        yield member


SHOWN = 20  # names or reasons shown per list


def inspect_here(cases: str, out: str, *, workers: str | None) -> int:
    """Survey a folder of cases, print the findings, and write a draft of a map."""
    count = _read_workers(workers)
    root, target, console = Path(cases).expanduser(), Path(out).expanduser(), Console(None, speaks=True)
    if target.exists():
        raise RequestError("map-exists", f"{target} already exists", seen="a file", expected="an unused name",
                           fix="--out another.yaml")  # fmt: skip
    with progress_bar(console, "looking at", "files") as report:
        survey = survey_folder(root, workers=count, progress=report)
    text = draft_map(survey)
    _say_survey(console, survey)
    try:
        target.write_text(text)
    except OSError as error:
        raise RequestError(
            "map-not-written", f"cannot write {target}", seen=str(error), expected="a folder that can be written to"
        ) from None
    try:
        parse_map(text, out)
        then = "check it"
    except RequestError as error:
        then = f"`prepare` would refuse it ({error.seen})"
    if GUESS in text or DOUBT in text:
        then += ", state in it what the numbers in the file names mean"
    line = shlex.join(["noether", "data", "prepare", cases, "OUT", "--map", out])
    print(f"{target}: a draft of the map; {then}, then: {line}")  # on one line, to copy
    return ExitCode.DONE


def _say_survey(console: Console, survey: Survey) -> None:
    cases = survey.grouping.cases
    console.say(f"{survey.root}: {len(cases)} cases, from {cases[0]} to {cases[-1]}, {survey.grouping.why}")
    if len(survey.looked_at) < len(cases):
        console.say(f"{len(survey.looked_at)} of them, spread evenly, were read, because all meshes exceed 4 GB")
    for (template, block), found in survey.blocks.items():
        console.say("", _title(template, block, found), _block_table(found), sep="\n")
    if survey.steps:
        guess = "; a guess: the file names differ in a number" if survey.grouping.steps else ""
        console.say(f"{words_of_steps(survey)}; the last is read, unless the map's `step` states another{guess}")
    for template, (table, at) in survey.values.items():
        console.say(f"{table}: a row for each of the {at} of {template}; its columns become arrays of that mesh")
    for template, numbers in survey.numbers.items():
        names = list(next(iter(numbers.values()), {}))
        console.say(f"{template}: {len(numbers)} cases with {first_of(names, SHOWN) or 'no numbers'}")
    for file, facts in survey.tables.items():
        console.say(f"{file}: {facts.rows} rows of {first_of(facts.columns, SHOWN)}")
    _warn_few(console, survey.odd)
    for words in survey.unread:
        console.say(words)


def _title(template: str, block: str, found: dict[str, BlockFacts]) -> str:
    facts = list(found.values())
    points, cells = range_text([own.points for own in facts]), range_text([own.cells for own in facts])
    kinds = sorted({"points" if own.kind == "points" else f"a {own.kind}" for own in facts})
    title = f"{template} {block}".rstrip()
    words = f"{title}: {' or '.join(kinds)} in {len(found)} cases, {points} points, {cells} cells"
    beside = [{(what, ""): count for what, count in own.beside.items()} for own in facts]
    return f"{words}; {in_no_set(beside)}" if any(beside) else words


def _block_table(found: dict[str, BlockFacts]) -> Table:
    table = _table(None, "array", "at", "components", "min", "max", "cases")
    for (at, name), arrays in arrays_of([found]).items():
        each = [array for _, array in arrays]
        low, high = min(array.low for array in each), max(array.high for array in each)
        components = range_text([array.components for array in each])
        table.add_row(name, at, components, f"{low:.4g}", f"{high:.4g}", str(len(each)))
    return table


def _table(title: str | None, *columns: str) -> Table:
    return Table(*columns, box=None, padding=(0, 2, 0, 0), title=title, title_justify="left")


def prepare_here(
    paths: Sequence[str], *, map_name: str | None, workers: str | None, skip_broken: bool, dry_run: bool
) -> int:
    """Prepare a folder of cases by a map, and report how many cases were made and kept, and which are broken.

    paths: `CASES OUT`, or with the map first, as in `shapenet_car ARCHIVE OUT`. RequestError: there are too few or too
    many paths, no map was given, or the source does not fit the map.
    """
    count = _read_workers(workers)
    source, folder, map_name = _folders_and_map(paths, map_name)
    text, console = map_text(map_name, shlex.join((str(source), str(folder)))), Console(None, speaks=True)
    about = parse_map(text, map_name)
    if dry_run and is_archive(source):
        console.say(f"{source}: its {source.stat().st_size / 1e9:.1f} GB would be unpacked to {folder} and prepared")
        console.say("dry run: nothing was written; a dry run on the unpacked folder names the cases")
        return ExitCode.DONE
    if dry_run:
        jobs, there, not_read = plan_cases(source, folder, about, count, skip_broken=skip_broken)
        console.say(f"{source}: {len(jobs) + len(there)} cases, {len(there)} of them complete in {folder}")
        console.say("would be prepared: " + (first_of([job.case for job in jobs], SHOWN) or "nothing"))
        for words in not_read:
            console.say(words)
        console.say("dry run: nothing was written")
        return ExitCode.DONE
    files = unpacked(source, folder) if is_archive(source) else nullcontext(source)
    with files as root, progress_bar(console, "preparing", "cases") as report:
        done = prepare_cases(root, folder, text, map_name, workers=count, skip_broken=skip_broken, progress=report)
    _say(console, done, folder, "cases" if about.reader == "meshes" else about.reader)
    return ExitCode.DONE


def _folders_and_map(paths: Sequence[str], map_name: str | None) -> tuple[Path, Path, str]:
    """Return the source folder, the folder to make, and the map's name, as given in the command's words."""
    if len(paths) == 3 and map_name is None:
        # If exactly one of the words can be a map, it is the map; otherwise, the first word is.
        maps = [word for word in paths if word in ready_maps() or word.endswith((".yaml", ".yml"))]
        map_name = paths[0] if len(maps) != 1 else maps[0]
        paths = [word for word in paths if word != map_name]
    if len(paths) != 2:
        named = shlex.join([paths[0], f"{paths[0].rstrip('/')}-prepared"]) if len(paths) == 1 else "CASES OUT"
        form = "shapenet_car SOURCE OUT" if "shapenet_car" in paths else f"CASES OUT --map {map_name or 'cases.yaml'}"
        raise RequestError("prepare-needs-two-folders",
                           "two folders are needed: the one with the cases, and the one to make",
                           seen=" ".join(paths) or "none", expected=f"noether data prepare {form}",
                           fix=f"noether data prepare {form.replace('CASES OUT', named)}")  # fmt: skip
    source, out = paths
    if map_name is None:
        inspect = shlex.join(["noether", "data", "inspect", source])
        raise RequestError("prepare-needs-a-map", "prepare needs a map, which describes the files",
                           seen="no --map",
                           expected="a file written by inspect, or a ready map: " + ", ".join(ready_maps()),
                           fix=f"{inspect} && noether data prepare {shlex.join(paths)} --map cases.yaml")  # fmt: skip
    return Path(source).expanduser(), Path(out).expanduser(), map_name


def _say(console: Console, done: PreparedCases, folder: Path, dataset: str) -> None:
    others = f" here and {done.others} by other processes" if done.others else ""
    console.say(f"{done.made} cases prepared{others}, {done.kept} were already up to date: {folder}")
    if done.notes:
        console.say(first_of(done.notes, SHOWN, "\n"))
    left_out = [f"left out: {error}" for error in done.broken.values()]
    _warn_few(console, left_out, f"; all of them are in {folder / DATASET_FILE}")
    for words in done.warnings:
        console.warn(words)
    uses = {"train": "train on", "validation": "validate with", "test": "test on"}
    sizes = ", ".join(f"{len(done.splits[name])} to {use}" for name, use in uses.items())
    line = shlex.join(["noether", "train", f"dataset={dataset}", f"dataset_root={as_override(str(folder))}"])
    print(f"{sizes}; train on it with: {line}")  # on one line, to copy


def describe_here(config: RunConfig, *, as_json: bool) -> int:
    """Print a description of the configured data set's training and test splits."""
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
        console.say(f"held out for validation: {config.dataset.validation_fraction:g} of the training split")
    for name, split in described.items():
        title = f"{name}: {split['samples']} samples"
        table = _table(title, "key", "shape", "type", "channel", "min", "max", "mean", "std")
        for key, about in split["arrays"].items():
            for channel, row in enumerate(about["channels"]):
                head = [key, about["shape"], about["dtype"]] if channel == 0 else ["", "", ""]
                numbers = [f"{row[name]:.6g}" for name in ("min", "max", "mean", "std")]
                table.add_row(*head, str(channel) if len(about["channels"]) > 1 else "", *numbers)
        console.say("", table, sep="\n")
    for note in notes:
        console.say(note)
    _warn_few(console, [f"{name} split, {words}" for name, split in described.items() for words in split["faults"]])
    return ExitCode.DONE


def _statistics_notes(config: RunConfig, train: dict[str, Any]) -> list[str]:
    """Compare ShapeNet-Car's statistics with those published for its split param0; return [] for other data sets."""
    if not isinstance(config.dataset, ShapeNetCarDatasetConfig):
        return []
    if config.dataset.split != "param0":
        return ["the published constants are those of the split param0"]
    differing = differing_statistics(train["arrays"])
    if not differing:
        return ["mean and standard deviation match the published ones within 1 % of a standard deviation"]
    found = train["samples"]
    why = f" ({found} of the {ALL_CARS - 100} training cars are here)" if found != ALL_CARS - 100 else ""
    return [f"statistics differ from the published constants{why}:", *(f"  {words}" for words in differing)]


def _read_workers(workers: str | None) -> int:
    """Return the number of processes: `workers` if given, else one per CPU, at most 16. RequestError: not a number."""
    few = min(usable_cpus(), 16)
    return few if workers is None else number_of("workers", workers, int, 1, 10**4, f"--workers {few}")


def _warn_few(console: Console, lines: list[str], where: str = "") -> None:
    """Print the first lines as warnings, then the number of remaining lines, if any."""
    for words in lines[:SHOWN]:
        console.warn(words)
    if len(lines) > SHOWN:
        console.warn(f"and {len(lines) - SHOWN} more{where}")

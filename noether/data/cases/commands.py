"""What `noether data inspect` and `noether data prepare` print and do for folders of cases."""

import shlex
from contextlib import ExitStack
from pathlib import Path

from rich.table import Table

from noether.common.console import Console
from noether.common.numbers import first_of
from noether.config.explain import as_override
from noether.data.cases.case_map import map_text, parse_map
from noether.data.cases.draft import draft_map, words_of_steps
from noether.data.cases.metadata import DATASET_FILE
from noether.data.cases.prepare import PreparedCases, plan_cases, prepare_cases
from noether.data.cases.survey import BlockFacts, Survey, arrays_of, survey_folder
from noether.data.cases.unpack import is_archive, unpacked
from noether.data.progress import progress_bar
from noether.errors import ExitCode, RequestError

SHOWN = 20  # names or reasons of a list


def prepare_cases_here(cases: str, out: str, map_name: str, *, workers: int, skip_broken: bool, dry_run: bool) -> int:
    """Prepares a folder of cases and says what was made, what was kept and what is broken."""
    source, folder, console = Path(cases).expanduser(), Path(out).expanduser(), Console(None, speaks=True)
    text = map_text(map_name)
    about = parse_map(text, map_name)
    if dry_run and is_archive(source):
        console.say(f"{source}: its {source.stat().st_size / 1e9:.1f} GB would be unpacked to {folder} and prepared")
        console.say("dry run: nothing was written; a dry run on the unpacked folder names the cases")
        return ExitCode.DONE
    if dry_run:
        jobs, there = plan_cases(source, folder, about, workers, skip_broken=skip_broken)
        console.say(f"{source}: {len(jobs) + len(there)} cases, {len(there)} of them complete in {folder}")
        console.say("would be prepared: " + (first_of([job.case for job in jobs], SHOWN) or "nothing"))
        console.say("dry run: nothing was written")
        return ExitCode.DONE
    with ExitStack() as held:
        root = held.enter_context(unpacked(source, folder)) if is_archive(source) else source
        report = held.enter_context(progress_bar(console, "preparing", "cases"))
        done = prepare_cases(root, folder, text, map_name, workers=workers, skip_broken=skip_broken, progress=report)
    _say(console, done, folder, "cases" if about.reader == "meshes" else about.reader)
    return ExitCode.DONE


def _say(console: Console, done: PreparedCases, folder: Path, dataset: str) -> None:
    others = f" here and {done.others} by other processes" if done.others else ""
    console.say(f"{done.made} cases prepared{others}, {done.kept} were already up to date: {folder}")
    warn_few(
        console, [f"left out: {error}" for error in done.broken.values()], f", all named in {folder / DATASET_FILE}"
    )
    for words in done.warnings:
        console.warn(words)
    uses = {"train": "train on", "validation": "validate with", "test": "test on"}
    sizes = ", ".join(f"{len(done.splits[name])} to {use}" for name, use in uses.items())
    console.say(
        f"{sizes}; train on it with: noether train dataset={dataset} "
        f"{shlex.quote(f'dataset_root={as_override(str(folder))}')}"
    )


def warn_few(console: Console, lines: list[str], where: str = "") -> None:
    """Shows the first of the lines as warnings, and how many more there are."""
    for words in lines[:SHOWN]:
        console.warn(words)
    if len(lines) > SHOWN:
        console.warn(f"and {len(lines) - SHOWN} more{where}")


def inspect_cases_here(cases: str, out: str, *, workers: int) -> int:
    """Looks through a folder of cases, says what is there, and writes a draft of its map."""
    root, target, console = Path(cases).expanduser(), Path(out).expanduser(), Console(None, speaks=True)
    if target.exists():
        raise RequestError(
            "map-exists",
            f"{target} already exists",
            seen="a file",
            expected="a name that is free",
            fix="--out another.yaml",
        )
    with progress_bar(console, "looking at", "files") as report:
        survey = survey_folder(root, workers=workers, progress=report)
    text = draft_map(survey)
    _say_survey(console, survey)
    try:
        target.write_text(text)
    except OSError as error:
        raise RequestError(
            "map-not-written", f"cannot write {target}", seen=str(error), expected="a folder to write to"
        ) from None
    console.say(
        f"{target}: a draft of the map; check it, then: "
        f"noether data prepare {shlex.quote(cases)} OUT --map {shlex.quote(out)}"
    )
    return ExitCode.DONE


def _say_survey(console: Console, survey: Survey) -> None:
    cases = survey.grouping.cases
    console.say(f"{survey.root}: {len(cases)} cases, from {cases[0]} to {cases[-1]}")
    if len(survey.looked_at) < len(cases):
        console.say(f"{len(survey.looked_at)} of them were read, spread evenly: all together are more than 4 GB")
    for (template, block), found in survey.blocks.items():
        console.say("", _block_table(template, block, found), sep="\n")
    if survey.steps:
        console.say(f"{words_of_steps(survey)}; the last is read, unless the map's `step` says otherwise")
    for template, (table, at) in survey.values.items():
        console.say(f"{table}: a row for each of the {at} of {template}, and taken as its arrays")
    for template, numbers in survey.numbers.items():
        names = list(next(iter(numbers.values()), {}))
        console.say(f"{template}: {len(numbers)} cases with {first_of(names, SHOWN) or 'no numbers'}")
    for file, facts in survey.tables.items():
        console.say(f"{file}: {facts.rows} rows of {first_of(facts.columns, SHOWN)}")
    warn_few(console, survey.odd)


def _block_table(template: str, block: str, found: dict[str, BlockFacts]) -> Table:
    facts = list(found.values())
    points, cells = _range([own.points for own in facts]), _range([own.cells for own in facts])
    named = f"{template} {block}".rstrip()
    kind = facts[0].kind if facts[0].kind == "points" else f"a {facts[0].kind}"
    title = f"{named}: {kind} in {len(found)} cases, {points} points, {cells} cells"
    table = Table("array", "at", "components", "min", "max", "cases", box=None, padding=(0, 2, 0, 0),
                  title=title, title_justify="left")  # fmt: skip
    for (at, name), arrays in arrays_of([found]).items():
        each = [array for _, array in arrays]
        low, high = min(array.low for array in each), max(array.high for array in each)
        components = _range([array.components for array in each])
        table.add_row(name, at, components, f"{low:.4g}", f"{high:.4g}", str(len(each)))
    return table


def _range(values: list[int]) -> str:
    low, high = min(values), max(values)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"

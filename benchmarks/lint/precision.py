"""How often the linter is right about strangers' job scripts: the table in docs/lint.md, and the page itself.

    python benchmarks/lint/precision.py                    # the table, from the verdicts in public_scripts.yaml
    python benchmarks/lint/precision.py FOLDER             # lints FOLDER/OWNER/REPOSITORY/PATH again and compares
    python benchmarks/lint/precision.py --page             # writes the table and the rules into docs/lint.md

The scripts themselves are other people's and are not kept here: the list names repository and path. FOLDER holds what
you have downloaded of them; what is not there is taken from the list as it stands.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from noether.lint.check import lint_file
from noether.lint.rank_rules import Requested
from noether.lint.rules import RULES

REPOSITORY = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("public_scripts.yaml")
PAGE = REPOSITORY / "docs" / "lint.md"
HEADING = "## How often it is right"
"""What stands above it in docs/lint.md is written by hand."""
EVERY_RULE = Requested(slurm=22.05)
"""With what depends on Slurm's version, as the verdicts were given."""
ERRORS = {rule.code for rule in RULES if rule.level == "error"}


@dataclass(frozen=True)
class Judged:
    """One script of the list: its findings ("LINE CODE level") by verdict, and the faults that were not found."""

    repository: str
    path: str
    findings: Mapping[str, str]
    missed: Sequence[str]


def read_list(path: Path = LIST) -> list[Judged]:
    """Returns the scripts of the list."""
    entries = yaml.safe_load(path.read_text())["scripts"]
    return [Judged(e["repository"], e["path"], e.get("findings") or {}, e.get("missed") or ()) for e in entries]


def table(scripts: Sequence[Judged]) -> str:
    """Returns precision and recall by rule as a section of docs/lint.md."""
    reported: Counter[str] = Counter()
    false: Counter[str] = Counter()
    missed: Counter[str] = Counter(text.split()[1] for script in scripts for text in script.missed)
    depends: Counter[str] = Counter()
    levels: Counter[tuple[str, bool]] = Counter()
    for script in scripts:
        for finding, verdict in script.findings.items():
            _, code, level = finding.split()
            reported[code] += 1
            false[code] += verdict == "false"
            depends[code] += verdict == "depends"
            levels[level, verdict == "false"] += 1
    names = {rule.code: rule.name for rule in RULES}
    rows = [
        f"| {code} | {names[code]} | {reported[code]} | {depends[code]} | {false[code]} "
        f"| {_share(right, reported[code])} | {missed[code]} | {_share(right, right + missed[code])} |"
        for code in sorted({*reported, *missed})
        for right in (reported[code] - false[code],)
    ]
    errors, warnings = (sum(levels[level, wrong] for wrong in (True, False)) for level in ("error", "warning"))
    repositories = len({script.repository for script in scripts})
    return "\n".join(
        [
            HEADING,
            "",
            f"{len(scripts)} public job scripts of {repositories} repositories, found by search and judged by reading",
            f"(`benchmarks/lint/public_scripts.yaml`): {errors} errors, {levels['error', True]} of them false;",
            f"{warnings} warnings, {levels['warning', True]} of them false. Rules without a row reported nothing.",
            *_NOTE,
            "",
            "| code | rule | reported | of them, depends | false | precision | missed | recall |",
            "|---|---|---|---|---|---|---|---|",
            *rows,
            "",
            "",
        ]
    )


_NOTE = (yaml.safe_load(LIST.read_text())["note"].strip().split("\n")) if LIST.exists() else []


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else "–"


def page(scripts: Sequence[Judged]) -> str:
    """Returns docs/lint.md with the table of precision and recall, and the rules."""
    rows = [
        f'| <a id="{rule.code.lower()}-{rule.name}"></a>{rule.code} | {rule.name} | {rule.level} '
        f"| {rule.why.replace('|', chr(92) + '|')} |"
        for rule in RULES
    ]
    head = ["## The rules", "", "| code | rule | level | why |", "|---|---|---|---|"]
    return PAGE.read_text().partition(HEADING)[0] + table(scripts) + "\n".join([*head, *rows, ""])


def compare(scripts: Sequence[Judged], folder: Path) -> Iterator[str]:
    """Yields a line for each finding that is new, gone, or of another level than in the list."""
    for script in scripts:
        file = folder / script.repository / script.path
        if not file.is_file():
            continue
        now = {f"{f.line} {f.code} {f.level}" for f in lint_file(file, EVERY_RULE).findings}
        for finding in sorted(now ^ set(script.findings)):
            yield f"{script.repository} {script.path}: {'new' if finding in now else 'gone'}: {finding}"


def main() -> int:
    """Prints the table or writes the page; with a folder, returns 1 where findings differ from the list."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--page", action="store_true", help="write docs/lint.md")
    asked = parser.parse_args()
    scripts = read_list()
    if asked.page:
        PAGE.write_text(page(scripts))
    else:
        print(table(scripts), end="")
    differing = list(compare(scripts, asked.folder)) if asked.folder else []
    print(*differing, sep="\n", end="\n" if differing else "", file=sys.stderr)
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())

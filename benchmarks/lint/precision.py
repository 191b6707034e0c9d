"""Compare the linter with readers' verdicts on public job scripts, and write docs/lint-rules.md.

    python benchmarks/lint/precision.py                    # count the verdicts in public_scripts.yaml by rule
    python benchmarks/lint/precision.py FOLDER             # lint FOLDER/OWNER/REPOSITORY/PATH again and compare
    python benchmarks/lint/precision.py --page             # write docs/lint-rules.md and the README's picture

The scripts belong to other people and are not kept here; the list gives their repositories and paths. Only the scripts
that you have downloaded to FOLDER are compared.
"""

import argparse
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from rich.console import Console
from rich.text import Text

from slurm_lint.check import lint_file
from slurm_lint.formats import render
from slurm_lint.programs import Asked, Site
from slurm_lint.rules import LEVELS, RULES

REPOSITORY = Path(__file__).resolve().parents[2]
LIST = Path(__file__).with_name("public_scripts.yaml")
PAGE = REPOSITORY / "docs" / "lint-rules.md"
PICTURE = REPOSITORY / "packages" / "slurm-lint" / "output.svg"
EXAMPLE = """#!/bin/bash
#SBATCH --nodes=2 --ntasks-per-node=4 --gpus-per-node=2
#SBATCH --time=2h
export MASTER_ADDR=localhost MASTER_PORT=29500
export RANK=$((SLURM_PROCID)) WORLD_SIZE=$SLURM_NTASKS
srun python train.py
"""
EVERY_RULE = Asked(Site(slurm=22.05), advice=True)
"""The linter's options when the verdicts were given: with all advice, and with the rules for Slurm 22.05."""


@dataclass(frozen=True)
class Judged:
    """A script of the list: the verdict on each finding ("LINE CODE level"), and each fault that was not found."""

    repository: str
    path: str
    findings: Mapping[str, str]
    missed: Sequence[str]


def read_list(path: Path = LIST) -> list[Judged]:
    """Return the scripts of the list."""
    entries = yaml.safe_load(path.read_text())["scripts"]
    return [Judged(e["repository"], e["path"], e.get("findings") or {}, e.get("missed") or ()) for e in entries]


def summary(scripts: Sequence[Judged]) -> str:
    """Return the section of docs/lint-rules.md that counts the findings and the false ones among them."""
    verdicts = Counter((finding.split()[2], verdict) for s in scripts for finding, verdict in s.findings.items())
    errors, warnings, advice = (sum(n for (of, _), n in verdicts.items() if of == level) for level in LEVELS)
    repositories = len({script.repository for script in scripts})
    return "\n".join(
        [
            "## How often it is right",
            "",
            f"{len(scripts)} public job scripts of {repositories} repositories, found by search and judged by reading",
            f"(`benchmarks/lint/public_scripts.yaml`): {errors} errors, {verdicts['error', 'false']} of them false;",
            f"{warnings} warnings, {verdicts['warning', 'false']} of them false;",
            f"{advice} pieces of advice, {verdicts['advice', 'false']} of them false.",
            *_NOTE,
            "",
            "",
        ]
    )


_NOTE = (yaml.safe_load(LIST.read_text())["note"].strip().split("\n")) if LIST.exists() else []


def by_rule(scripts: Sequence[Judged]) -> Iterator[str]:
    """Yield a line per rule with its counts of findings, false findings and missed faults, unless all are 0."""
    findings = [(finding.split()[1], verdict) for script in scripts for finding, verdict in script.findings.items()]
    missed = Counter(text.split()[1] for script in scripts for text in script.missed)
    for rule in RULES:
        verdicts = Counter(verdict for code, verdict in findings if code == rule.code)
        counts = {"found": verdicts.total(), "false": verdicts["false"], "missed": missed[rule.code]}
        if any(counts.values()):
            yield f"{rule.code} {rule.name}: " + ", ".join(
                f"{number} {what}" for what, number in counts.items() if number
            )


def rules_table(scripts: Sequence[Judged]) -> Iterator[str]:
    """Yield the lines of the page's table of rules; `fired on` counts the scripts in which a rule found something."""
    fired = Counter(code for s in scripts for code in {finding.split()[1] for finding in s.findings})
    yield from (
        "# The rules of `slurm-lint`",
        "",
        f"`make docs` generates this page. Of {len(scripts):,} public scripts, `fired on` counts those with a finding",
        "of the rule. A rule with 0 guards against a hang, or needs an unreadable file or a site's file.",
        "",
    )
    yield from ("| rule | level | fired on | why |", "|---|---|---|---|")
    for rule in RULES:
        why = rule.why.replace("|", "\\|")
        yield f"| {rule.code} {rule.name} | {rule.level} | {fired[rule.code]} | {why} |"


def page(scripts: Sequence[Judged]) -> str:
    """Return the content of docs/lint-rules.md: the rules, and how often the linter is right."""
    return "\n".join([*rules_table(scripts), "", summary(scripts).rstrip(), ""])


def picture() -> str:
    """Return an SVG picture of a terminal in which the linter checks EXAMPLE."""
    with TemporaryDirectory() as folder:
        script = Path(folder) / "job.sbatch"
        script.write_text(EXAMPLE)
        said = render([lint_file(script)._replace(path=Path(script.name))], "text", colour=True)
    console = Console(record=True, width=132, file=StringIO(), force_terminal=True)
    console.print(Text.from_ansi("\n".join(["$ cat job.sbatch", EXAMPLE, "$ slurm-lint job.sbatch", *said])))
    drawn = console.export_svg(title="slurm-lint", unique_id="slurm-lint")
    return re.sub(r"\s*@font-face \{.*?\}", "", drawn, flags=re.DOTALL)  # Load no fonts from another host.


def compare(scripts: Sequence[Judged], folder: Path) -> Iterator[str]:
    """Yield a line per new finding and per finding that is gone; one whose level changed counts as both."""
    for script in scripts:
        file = folder / script.repository / script.path
        if not file.is_file():
            continue
        now = {f"{f.line} {f.code} {f.level}" for f in lint_file(file, EVERY_RULE).findings}
        for finding in sorted(now ^ set(script.findings)):
            yield f"{script.repository} {script.path}: {'new' if finding in now else 'gone'}: {finding}"


def main() -> int:
    """Print the counts or write the page; with FOLDER, also compare findings, and return 1 if any finding differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--page", action="store_true", help="write docs/lint-rules.md")
    asked = parser.parse_args()
    scripts = read_list()
    if asked.page:
        PAGE.write_text(page(scripts))
        PICTURE.write_text(picture())
    else:
        print(*by_rule(scripts), sep="\n")
    differing = list(compare(scripts, asked.folder)) if asked.folder else []
    print(*differing, sep="\n", end="\n" if differing else "", file=sys.stderr)
    return bool(differing)


if __name__ == "__main__":
    sys.exit(main())

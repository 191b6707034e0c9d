"""Rules about numbers in comments and READMEs: sums of nodes and GPUs, and what a comment says of the options."""

import re
from collections.abc import Iterator, Sequence

from noether.distributed.deadline import seconds_left
from noether.lint.finding import Finding
from noether.lint.job import Job, JobShape

_GPU = r"(?:(?:[A-Za-z]+\d*\w*\s+)?GPUs?|(?:[ABHLPV]|GH)\d{2,3}s?)\b"
_PRODUCT = (
    rf"(?P<nodes>\d+)\s*nodes?\s*(?:x|×|\*|with)\s*(?P<gpus>\d+)\s*{_GPU}(?:\s*(?:per node|each|/\s*node|a node))?"
)
_CLAIM = re.compile(
    _PRODUCT
    + rf"(?:\s*(?:(?:=|→|->)\s*(?P<said>\d+)\b(?!\s*\w*\s*(?:per|each)\b|\s*(?:[KMGT]i?B|[TGP]FLOP|CPU|core|W\b|h\b))"
    rf"|\(\s*=?\s*(?P<aside>\d+)\s*{_GPU}(?:\s*(?:in total|total))?\s*\)|,\s*(?P<all>\d+)\s*{_GPU}\s*in total))?",
    re.IGNORECASE,
)
_COMMENT = re.compile(r"(?:#SBATCH[^#]*|\s*(?!#SBATCH))#+(?!!)(.*)")
_LENGTH = re.compile(r"(?<![\w.:-])(\d+)[ -]?(hour|hr|day)s?\b", re.IGNORECASE)
_HEDGED = re.compile(
    r"\b(if|for|up to|max|at most|at least|e\.g|example|or|other|instead|change|set|would|more|per job|sbatch)\b", re.I
)


def claims(lines: Sequence[tuple[int, str]], shape: JobShape | None = None) -> Iterator[Finding]:
    """claim-arithmetic: nodes × GPUs that are said to be another number; claim-mismatch: or that are not the job's."""
    for number, text in lines:
        for match in _CLAIM.finditer(text):
            nodes, gpus = int(match["nodes"]), int(match["gpus"])
            said = next((int(match[name]) for name in ("said", "aside", "all") if match[name]), nodes * gpus)
            if said != nodes * gpus:
                message = f"{match[0].strip()}: {nodes} × {gpus} = {nodes * gpus}"
                yield Finding(number, "claim-arithmetic", message, f"{nodes * gpus} in place of {said}")
            elif shape is not None and not _HEDGED.search(text):
                pairs = (nodes, "nodes", shape.nodes_known and shape.nodes), (gpus, "GPUs a node", shape.gpus_per_node)
                wrong = [f"{n} {what}, the options give {given}" for n, what, given in pairs if given and n != given]
                if wrong:
                    message = f"the comment says {'; '.join(wrong)}"
                    yield Finding(number, "claim-mismatch", message, "change the comment or the option")


def comments(job: Job) -> Iterator[Finding]:
    """claim-arithmetic, claim-mismatch: what comments say of the job, against its options."""
    lines = enumerate(job.script.lines, job.script.first_line)
    said = [(number, match[1]) for number, line in lines if (match := _COMMENT.match(line))]
    yield from claims(said, job.shape if len(job.components) == 1 and job.options.given else None)
    option = job.options.last("time")
    if option is None or (asked := seconds_left(option.value)) is None:
        return
    for number, text in said:
        own = number == option.line or (number == option.line - 1 and not job.script.source(number).startswith("#S"))
        lengths = {int(length) * (24 if unit.lower() == "day" else 1) for length, unit in _LENGTH.findall(text)}
        if own and len(lengths) == 1 and abs(asked - 3600 * min(lengths)) > 60 and not _HEDGED.search(text):
            message = f"the comment says {lengths.pop()} hours, the option --time={option.value}"
            yield Finding(number, "claim-mismatch", message, "change the comment or the option")

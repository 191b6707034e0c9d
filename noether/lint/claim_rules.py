"""Rules about numbers in comments and READMEs: sums of nodes and GPUs, and what a comment says of the options."""

import re
from collections.abc import Iterator, Sequence

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
                asked = shape.nodes if shape.nodes_known else None
                pairs = (nodes, "nodes", asked), (gpus, "GPUs per node", shape.gpus_per_node)
                wrong = [f"{n} {what}, the options give {given}" for n, what, given in pairs if given and n != given]
                if wrong:
                    message = f"the comment says {'; '.join(wrong)}"
                    yield Finding(number, "claim-mismatch", message, "change the comment or the option")


def comments(job: Job) -> Iterator[Finding]:
    """claim-arithmetic, claim-mismatch: what comments say of the job, against its options."""
    said = [(number, _comment_of(line)) for number, line in enumerate(job.script.lines, job.script.first_line)]
    yield from claims(said, job.shape if len(job.components) == 1 and job.options.given else None)


def _comment_of(line: str) -> str:
    if line.startswith("#SBATCH"):
        return line[7:].partition("#")[2]
    return line.lstrip().lstrip("#") if line.lstrip().startswith("#") and not line.startswith("#!") else ""

"""Rules about numbers in comments and READMEs: sums of nodes and GPUs, and what a comment says of the options."""

import re
from collections.abc import Iterator, Sequence

from noether.lint.finding import Finding
from noether.lint.job import Job

_GPU = r"(?:(?:[A-Za-z]+\d*\w*\s+)?GPUs?|(?:[ABHLPV]|GH)\d{2,3}s?)\b"
_PRODUCT = (
    rf"(?P<nodes>\d+)\s*nodes?\s*(?:x|×|\*|with)\s*(?P<gpus>\d+)\s*{_GPU}(?:\s*(?:per node|each|/\s*node|a node))?"
)
_PRODUCTS = re.compile(_PRODUCT, re.IGNORECASE)
_SUM = re.compile(
    _PRODUCT
    + rf"\s*(?:(?:=|→|->)\s*(?P<said>\d+)\b(?!\s*\w*\s*(?:per|each)\b|\s*(?:[KMGT]i?B|[TGP]FLOP|CPU|core|W\b|h\b))"
    rf"|\(\s*=?\s*(?P<aside>\d+)\s*{_GPU}(?:\s*(?:in total|total))?\s*\)|,\s*(?P<all>\d+)\s*{_GPU}\s*in total)",
    re.IGNORECASE,
)
_HEDGED = re.compile(
    r"\b(if|for|up to|max|at most|at least|e\.g|example|or|other|instead|change|set|would|more|per job|sbatch)\b", re.I
)


def arithmetic(lines: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """claim-arithmetic: nodes × GPUs that are said to be another number."""
    for number, text in lines:
        for match in _SUM.finditer(text):
            nodes, gpus, said = (int(match[name]) for name in ("nodes", "gpus", match.lastgroup or ""))
            if said != nodes * gpus:
                message = f"{match[0].strip()}: {nodes} × {gpus} = {nodes * gpus}"
                yield Finding(number, "claim-arithmetic", message, f"{nodes * gpus} in place of {said}")


def comments(job: Job) -> Iterator[Finding]:
    """claim-arithmetic, claim-mismatch: what comments say of the job, against its options."""
    script, shape = job.script, job.shape
    said = [(number, _comment_of(line)) for number, line in enumerate(script.lines, script.first_line)]
    sums = list(arithmetic([(number, text) for number, text in said if text.strip()]))
    yield from sums
    if len(job.components) > 1 or not job.options.given:
        return
    for number, text in said:
        product = _PRODUCTS.search(text)
        if product is None or number in {finding.line for finding in sums} or _HEDGED.search(text):
            continue
        wrong = []
        if shape.nodes_known and int(product["nodes"]) != shape.nodes:
            wrong.append(f"{product['nodes']} nodes, the options give {shape.nodes}")
        if shape.gpus_per_node and int(product["gpus"]) != shape.gpus_per_node:
            wrong.append(f"{product['gpus']} GPUs per node, the options give {shape.gpus_per_node}")
        if wrong:
            message = f"the comment says {'; '.join(wrong)}"
            yield Finding(number, "claim-mismatch", message, "change the comment or the option")


def _comment_of(line: str) -> str:
    if line.startswith("#SBATCH"):
        return line[7:].partition("#")[2]
    return line.lstrip().lstrip("#") if line.lstrip().startswith("#") and not line.startswith("#!") else ""

"""Do the numbers in comments and in a README add up, and are they those of the options?"""

import re
from collections.abc import Iterator, Sequence

from noether.slurm.lint.finding import Finding
from noether.slurm.lint.job import Job
from noether.slurm.lint.script import comment_of

_BY = r"\s*(?:x|×|\*|by|with|of|and|,|each with|à)\s*"
_GPU = r"(?:[A-Za-z]+\d*\w*\s+)?(?:GPUs?|gpus?)"
_PER = r"(?:\s*(?:per node|each|/\s*node|a node|on each node))?"
_PRODUCT = re.compile(
    rf"(\d+)\s*nodes?{_BY}(\d+)\s*{_GPU}{_PER}(?:\s*(?:=|→|->|is|are|makes?|gives?|:)\s*(\d+))?", re.IGNORECASE
)
_NODES = re.compile(r"(?<![\d.-])(\d+)\s+nodes?\b(?!\s*=)", re.IGNORECASE)
_GPUS_EACH = re.compile(rf"(?<![\d.-])(\d+)\s+{_GPU}\s*(?:per node|each|/\s*node|a node|on each node)", re.IGNORECASE)
_GPUS_IN_ALL = re.compile(rf"(?<![\d.-])(\d+)\s+{_GPU}\s*(?:in total|in all|total|altogether)", re.IGNORECASE)
_HEDGED = re.compile(
    r"\b(if|for|up to|max|at most|at least|e\.g\.|example|or|other|instead|change|set|would|more|per job)\b", re.I
)


def arithmetic(lines: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """claim-arithmetic: nodes × GPUs that are said to be another number."""
    for number, text in lines:
        for match in _PRODUCT.finditer(text):
            nodes, gpus, said = int(match[1]), int(match[2]), match[3]
            if said and int(said) != nodes * gpus:
                message = f"{match[0].strip()}: {nodes} × {gpus} = {nodes * gpus}"
                fix = text[: match.start(3)] + str(nodes * gpus) + text[match.end(3) :]
                yield Finding(number, "error", "claim-arithmetic", message, fix.strip())


def comments(job: Job) -> Iterator[Finding]:
    """claim-arithmetic, claim-mismatch: what comments say of the job, against its options."""
    script, shape = job.script, job.shape
    said = [(i + script.first_line, comment_of(line)) for i, line in enumerate(script.lines)]
    said = [(number, text) for number, text in said if text.strip()]
    sums = list(arithmetic(said))
    yield from sums
    wrong_sums = {finding.line for finding in sums}
    if len(job.components) > 1 or not job.options.given:
        return
    for number, text in said:
        if number in wrong_sums or _HEDGED.search(text):
            continue
        wrong = []
        product = _PRODUCT.search(text)
        if product:
            nodes, gpus = int(product[1]), int(product[2])
            if shape.nodes_known and nodes != shape.nodes:
                wrong.append(f"{nodes} nodes, the options give {shape.nodes}")
            if shape.gpus_per_node and gpus != shape.gpus_per_node:
                wrong.append(f"{gpus} GPUs per node, the options give {shape.gpus_per_node}")
        else:
            for pattern, real, what in (
                (_NODES, shape.nodes if job.given("nodes") else None, "nodes"),
                (_GPUS_EACH, shape.gpus_per_node, "GPUs per node"),
                (_GPUS_IN_ALL, shape.total_gpus, "GPUs in all"),
            ):
                match = pattern.search(text)
                if match and real is not None and int(match[1]) != real:
                    wrong.append(f"{match[1]} {what}, the options give {real}")
        if wrong:
            yield Finding(
                number,
                "warning",
                "claim-mismatch",
                f"the comment says {'; '.join(wrong)}",
                "mend the comment or the option",
            )

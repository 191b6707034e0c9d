"""Do the numbers in comments and in a README add up, and are they those of the options?"""

import re
from collections.abc import Iterator, Sequence

from noether.lint.finding import Finding
from noether.lint.job import Job
from noether.lint.script import comment_of

_BY = r"\s*(?:x|×|\*|by|with|of|and|,|each with|à)\s*"
_GPU = r"(?:(?:[A-Za-z]+\d*\w*\s+)?GPUs?|(?:[ABHLPV]|GH|MI)\d{2,3}[A-Z]?s?)\b"
_EACH = r"\s*(?:per node|each|/\s*node|a node|on each node)"
_PER = rf"(?:{_EACH})?"
_TOTAL = r"(?:in total|in all|total|altogether)"
_FACTORS = rf"(?P<nodes>\d+)\s*nodes?{_BY}(?P<gpus>\d+)\s*{_GPU}{_PER}"
# "16 GPUs across 4 nodes" are 16 in all.
_TURNED = rf"(?P<gpus>\d+)\s*{_GPU}(?:{_PER}\s*[x×*]|{_EACH}\s*(?:on|over|across))\s*(?P<nodes>\d+)\s*nodes?"
_SAID = (
    r"(?:\s*(?:=|→|->)\s*(?P<said>\d+)\b(?!\s*\w*\s*(?:per|each)\b)"
    # "4 nodes, 8 GPUs: 3 h" is of something else.
    r"|\s*(?:is|are|makes?|gives?|:)\s*(?P<told>\d+)(?=\s*(?:\w*\s*GPU|ranks|process|[.,;)](?!\d)|$))"
    rf"|\s*\(\s*=?\s*(?P<aside>\d+)\s*(?:{_GPU}|{_GPU}\s*{_TOTAL}|{_TOTAL})\s*\)"
    rf"|\s*[,;]?\s*(?:for\s+|so\s+|i\.e\.\s+)?(?:a\s+)?total(?:ling|\s+of|:)\s*(?P<total>\d+)\s*{_GPU}"
    rf"|\s*[,;]\s*(?P<all>\d+)\s*{_GPU}\s*{_TOTAL})"
)
_PRODUCT = re.compile(_FACTORS, re.IGNORECASE)
_SUMS = [
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        _FACTORS + _SAID,
        _TURNED + _SAID,
        rf"(?P<said>\d+)\s*{_GPU}(?:\s*{_TOTAL})?\s*\(\s*{_FACTORS}\s*\)",
        rf"(?P<said>\d+)\s*{_GPU}(?:\s*{_TOTAL})?\s*=\s*{_FACTORS}",
    )
]
_NODES = re.compile(r"(?<![\d.-])(\d+)\s+nodes?\b(?!\s*=)", re.IGNORECASE)
_GPUS_EACH = re.compile(rf"(?<![\d.-])(\d+)\s+{_GPU}\s*(?:per node|each|/\s*node|a node|on each node)", re.IGNORECASE)
_GPUS_IN_ALL = re.compile(rf"(?<![\d.-])(\d+)\s+{_GPU}\s*(?:in total|in all|total|altogether)", re.IGNORECASE)
_HEDGED = re.compile(
    r"\b(if|for|up to|max|at most|at least|e\.g\.|example|or|other|instead|change|set|would|more|per job)\b", re.I
)


def arithmetic(lines: Sequence[tuple[int, str]]) -> Iterator[Finding]:
    """claim-arithmetic: nodes × GPUs that are said to be another number."""
    for number, text in lines:
        for match in (match for pattern in _SUMS for match in pattern.finditer(text)):
            parts = {name: value for name, value in match.groupdict().items() if value is not None}
            nodes, gpus = int(parts.pop("nodes")), int(parts.pop("gpus"))
            [(name, said)] = parts.items()
            if int(said) != nodes * gpus:
                message = f"{match[0].strip()}: {nodes} × {gpus} = {nodes * gpus}"
                fix = text[: match.start(name)] + str(nodes * gpus) + text[match.end(name) :]
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
            nodes, gpus = int(product["nodes"]), int(product["gpus"])
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

"""Rules about numbers in comments: what they say of nodes, GPUs, hours and a signal's lead, against the options."""

import re
from collections.abc import Iterator

from noether.launch.process_group.deadline import seconds_left
from noether.lint.finding import Finding
from noether.lint.job import Job
from noether.lint.options import signal_request

_GPU = r"(?:(?:[A-Za-z]+\d*\w*\s+)?GPUs?|(?:[ABHLPV]|GH)\d{2,3}s?)\b"
_EACH = r"\s*(?:per node|each|/\s*node|a node)"
# After a comma the GPUs may be those of all nodes.
_TIMES = rf"(?:x|×|\*|with|,(?=\s*\d+\s*{_GPU}{_EACH}))"
_CLAIM = re.compile(rf"(?P<nodes>\d+)\s*nodes?\s*{_TIMES}\s*(?P<gpus>\d+)\s*{_GPU}", re.IGNORECASE)
_COMMENT = re.compile(r"(?:#SBATCH[^#]*|\s*(?!#SBATCH))#+(?!!)(.*)")
_LENGTH = re.compile(r"(?<![\w.:-])(\d+)[ -]?((?:hour|hr|h|day|minute|min|second|sec)s?)\b", re.IGNORECASE)
_SECONDS = {"h": 3600, "d": 86400, "m": 60, "s": 1}
_HEDGED = re.compile(
    r"\b(if|for|up to|max|at most|at least|e\.g|example|or|other|instead|change|would|more|per job|sbatch)\b", re.I
)
_FIX = "change the comment or the option"


def comments(job: Job) -> Iterator[Finding]:
    """claim-mismatch: what comments say of the job, against its options."""
    lines = enumerate(job.script.lines, job.script.first_line)
    matches = [(number, match[1]) for number, line in lines if (match := _COMMENT.match(line))]
    said, shape = [(number, text) for number, text in matches if not _HEDGED.search(text)], job.shape
    for number, text in said if len(job.components) == 1 and job.options.given else ():
        for match in _CLAIM.finditer(text):
            nodes, gpus = int(match["nodes"]), int(match["gpus"])
            pairs = (nodes, "nodes", shape.nodes_known and shape.nodes), (gpus, "GPUs a node", shape.gpus_per_node)
            if wrong := [f"{n} {what}, the options give {given}" for n, what, given in pairs if given and n != given]:
                yield Finding(number, "claim-mismatch", f"the comment says {'; '.join(wrong)}", _FIX)
    for option in (given for name in ("time", "signal") if (given := job.options.last(name))):
        request = signal_request(option.value) if option.name == "signal" else None
        asked, units = (request.lead_s, "ms") if request else (seconds_left(option.value) or 0, "hd")
        for number, text in said if asked else ():
            above = number == option.line - 1 and not job.script.source(number).startswith("#S")
            lengths = {found for found in _LENGTH.findall(text) if found[1][0].lower() in units}
            seconds = {int(length) * _SECONDS[unit[0].lower()] for length, unit in lengths}
            if (above or number == option.line) and len(seconds) == 1 and abs(asked - min(seconds)) > 60:
                message = f"the comment says {' '.join(lengths.pop())}, the option --{option.name}={option.value}"
                yield Finding(number, "claim-mismatch", message, _FIX)

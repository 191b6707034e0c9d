"""Which host does a script take from the job's node list: the first, a later one, or the list as if it were one?"""

import re
from collections.abc import Iterator

from noether.lint.finding import Finding
from noether.lint.job import Job
from noether.lint.shell import Command, unquote

FIRST_HOST = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
_LATER = r"(?:[2-9]|[1-9]\d+)"
_LATER_LINE = (
    # Of a list with a host on each line.
    r"\btail\b",
    rf"\bsed\s[^|]*?\b{_LATER}(?:p|!d|\s*q\s*;\s*d)\b",
    r"\bsed\s[^|]*?\$p",
    rf"\bawk\s[^|]*?\bNR\s*==\s*{_LATER}\b",
    r"\bawk\s[^|]*?(?:\bNR\s*>\s*\d|\bEND\b)",
    # Of the one line that an unquoted echo makes of them.
    rf"\becho\s+\$[^|]*\|\s*awk\s+['\"]?\{{\s*print\s+\\?\${_LATER}\b",
    rf"\becho\s+\$[^|]*\|\s*cut\s+-d\s*(?:'\s'|\"\s\"|\\\s)\s*-f\s*{_LATER}\b",
)
_LIST = r"\$\{?SLURM(?:_JOB|_STEP)?_NODELIST\b\}?"
_HOST_OPTION = re.compile(
    r"--?(?:(?:dist|init|main|master|head|server)[-_])?(?:process[-_])?"
    r"(?:addr|address|ip|host|hostname|url|method)"
)
_REMOTE = {"ssh", "scp", "ping", "rsh"}
_MESSAGE = "a node list such as n[1-4] is no host name"


def picks_later_host(text: str) -> bool:
    """Says whether a pipeline picks another than the first of the hosts that scontrol show hostnames writes."""
    return "scontrol" in text and any(re.search(pattern, text) for pattern in _LATER_LINE)


def is_node_list(text: str) -> bool:
    """Says whether a word has a node list where a host's name is wanted, and no command that picks one of it."""
    return re.search(_LIST, text) is not None and "$(" not in text and "`" not in text


def lists_as_hosts(job: Job) -> Iterator[Finding]:
    """master-not-a-host: a node list where a program, ssh or a loop takes the name of a host."""
    if job.shape.nodes < 2 and len(job.components) < 2:
        return  # Of one node the list is the name.
    for launch in job.launches:
        if launch.layer("per-node") is None:  # A launcher's own options are the master's, and judged with it.
            for command in (launch.command, *launch.per_task):
                yield from _option_values(job, command)
    for command in job.script.commands:
        if command.name in _REMOTE and any(re.match(_LIST, word.text) for word in command.words):
            yield Finding(command.line, "error", "master-not-a-host", _MESSAGE, _with_first_host(job, command.line))
    for number, line in enumerate(job.script.lines, job.script.first_line):
        if loop := re.match(rf'\s*for\s+\w+\s+in\s+"?({_LIST})"?\s*(?:;|$)', line):
            fix = re.sub(rf'"?{_LIST}"?', lambda _, name=loop[1]: f'$(scontrol show hostnames "{name}")', line)  # type: ignore[misc]
            yield Finding(
                number, "error", "master-not-a-host", "a loop over a node list runs once, with n[1-4]", fix.strip()
            )


def _option_values(job: Job, command: Command) -> Iterator[Finding]:
    for word, following in zip(command.words, [*command.words[1:], None], strict=True):
        name, has_value, value = word.raw.partition("=")
        if not has_value:
            value = following.raw if following else ""
        if _HOST_OPTION.fullmatch(name) and is_node_list(job.variables.expand(unquote(value))):
            yield Finding(word.line, "error", "master-not-a-host", _MESSAGE, _with_first_host(job, word.line))


def _with_first_host(job: Job, line: int) -> str:
    source = job.script.source(line).strip()
    # The list of srun's own --nodelist stays.
    mended = re.sub(
        rf"(?<!-w )(?<!-w)(?<!--nodelist=)(?<!--nodelist )\"?{_LIST}\"?", lambda _: f'"{FIRST_HOST}"', source
    )
    return mended if mended != source else FIRST_HOST

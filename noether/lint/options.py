"""Which options do sbatch and srun know, which of them take a value, and what do words in their place mean?

The tables are those of Slurm 22.05 (sbatch(1), srun(1)) with what later versions added; `--container-…` and the like
come with plugins that many clusters load, so they are never unknown.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from noether.common.suggest import nearest

Takes = Literal["value", "nothing", "maybe"]

_SHARED: Mapping[str, str] = {
    "A": "account", "a": "array", "b": "begin", "D": "chdir", "M": "clusters", "C": "constraint", "S": "core-spec",
    "c": "cpus-per-task", "d": "dependency", "m": "distribution", "e": "error", "x": "exclude", "B": "extra-node-info",
    "G": "gpus", "H": "hold", "i": "input", "J": "job-name", "k": "no-kill", "L": "licenses", "F": "nodefile",
    "w": "nodelist", "N": "nodes", "n": "ntasks", "o": "output", "O": "overcommit", "s": "oversubscribe",
    "p": "partition", "q": "qos", "Q": "quiet", "t": "time", "v": "verbose", "V": "version", "h": "help",
}  # fmt: skip
SBATCH_SHORT = {**_SHARED, "W": "wait"}
SRUN_SHORT = {
    **{letter: name for letter, name in _SHARED.items() if letter != "a"},
    "W": "wait", "K": "kill-on-bad-exit", "l": "label", "I": "immediate", "r": "relative", "T": "threads",
    "u": "unbuffered", "X": "disable-status", "Z": "no-allocate", "E": "preserve-env",
}  # fmt: skip

_VALUES = [
    "account",
    "acctg-freq",
    "bb",
    "bbf",
    "begin",
    "chdir",
    "cluster-constraint",
    "clusters",
    "comment",
    "constraint",
    "container",
    "core-spec",
    "cores-per-socket",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "error",
    "exclude",
    "export",
    "extra-node-info",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "input",
    "job-name",
    "licenses",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "nodefile",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "ntasks-per-socket",
    "ntasks-per-tres",
    "open-mode",
    "output",
    "partition",
    "power",
    "prefer",
    "priority",
    "profile",
    "qos",
    "reservation",
    "signal",
    "sockets-per-node",
    "switches",
    "tasks",
    "tasks-per-node",
    "thread-spec",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "tres-bind",
    "tres-per-job",
    "tres-per-node",
    "uid",
    "wckey",
]
_NOTHING = [
    "contiguous",
    "help",
    "hold",
    "overcommit",
    "oversubscribe",
    "quiet",
    "reboot",
    "spread-job",
    "test-only",
    "usage",
    "use-min-nodes",
    "verbose",
    "version",
]
_LATER = {  # Options that came after 22.05, and plugins' own.
    "tres-per-task": "value",
    "container-id": "value",
    "oom-kill-step": "maybe",
    "stepmgr": "nothing",
    "consolidate-segments": "nothing",
    "segment": "value",
    "spread-segments": "nothing",
    "resources": "value",
    "external": "nothing",
}
_PLUGIN_PREFIXES = ("container-", "no-container-")
SBATCH: Mapping[str, Takes] = {
    **dict.fromkeys(_VALUES, "value"),
    **dict.fromkeys(_NOTHING, "nothing"),
    **dict.fromkeys(["array", "batch", "export-file", "kill-on-invalid-dep", "wait-all-nodes", "wrap"], "value"),
    **dict.fromkeys(["ignore-pbs", "no-requeue", "parsable", "requeue", "wait"], "nothing"),
    **dict.fromkeys(["exclusive", "get-user-env", "nice", "no-kill", "propagate"], "maybe"),
    **_LATER,  # type: ignore[dict-item]
}
SRUN: Mapping[str, Takes] = {
    **dict.fromkeys(_VALUES, "value"),
    **dict.fromkeys(_NOTHING, "nothing"),
    **dict.fromkeys(
        [
            "accel-bind",
            "bcast-exclude",
            "cpu-bind",
            "epilog",
            "het-group",
            "pack-group",
            "jobid",
            "mpi",
            "msg-timeout",
            "prolog",
            "relative",
            "slurmd-debug",
            "task-epilog",
            "task-prolog",
            "threads",
            "wait",
        ],
        "value",
    ),
    **dict.fromkeys(
        [
            "disable-status",
            "exact",
            "whole",
            "label",
            "multi-prog",
            "no-allocate",
            "overlap",
            "preserve-env",
            "pty",
            "quit-on-interrupt",
            "unbuffered",
        ],
        "nothing",
    ),
    **dict.fromkeys(
        [
            "bcast",
            "compress",
            "exclusive",
            "immediate",
            "kill-on-bad-exit",
            "nice",
            "no-kill",
            "propagate",
            "resv-ports",
            "send-libs",
            "x11",
        ],
        "maybe",
    ),
    **_LATER,  # type: ignore[dict-item]
}
# getopt takes these for the options of the same meaning; both names are then one here.
SYNONYMS = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node"}

OTHER_WORDS = {  # What people write, from other schedulers and habits: what Slurm calls it.
    "walltime": "time", "queue": "partition", "name": "job-name", "jobname": "job-name", "num-gpus": "gpus",
    "gpu": "gpus", "ngpus": "gpus", "workdir": "chdir", "mem-per-node": "mem", "memory": "mem", "mail": "mail-user",
    "email": "mail-user", "share": "oversubscribe", "cpus": "cpus-per-task", "num-nodes": "nodes", "nnodes": "nodes",
    "node": "nodes", "cores": "cpus-per-task", "stdout": "output", "stderr": "error", "log": "output",
    "project": "account",
}  # fmt: skip


@dataclass(frozen=True)
class Given:
    """One option as it was given: its full name, its value ("" where it takes none) and where."""

    name: str
    value: str
    line: int
    spelt: str
    """How the option was written, value included: `-N 2`."""


@dataclass(frozen=True)
class Problem:
    """Words that cannot be read as options: which kind of problem, what it is, and what to write (or "")."""

    kind: Literal["unknown-option", "missing-value", "unwanted-value", "stray-word"]
    word: str
    line: int
    message: str
    instead: str = ""


@dataclass
class Options:
    """Options in the order they were given, what could not be read, and the words behind them."""

    given: list[Given] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)

    def last(self, name: str) -> Given | None:
        """Returns the option that holds: of several the last, as for getopt."""
        return next((option for option in reversed(self.given) if option.name == name), None)

    def value(self, name: str) -> str | None:
        """Returns the value that holds, or None where the option was not given."""
        option = self.last(name)
        return option.value if option else None


def read_options(words: Sequence[str], line: int, command: Literal["sbatch", "srun"]) -> Options:
    """Reads options as getopt_long does: `--name=value`, `--name value`, `--nam`, `-N2`, `-N 2`, `-vN2`.

    srun stops at its first word that is no option; in a script, sbatch refuses such a word ("Invalid directive").
    """
    table, short = (SBATCH, SBATCH_SHORT) if command == "sbatch" else (SRUN, SRUN_SHORT)
    found = Options()
    queue = list(words)
    while queue:
        word = queue.pop(0)
        if word == "--" and command == "srun":
            found.rest = queue
            return found
        if word.startswith("--"):
            _read_long(word, queue, line, table, command, found)
        elif word.startswith("-") and len(word) > 1:
            _read_short(word, queue, line, table, short, command, found)
        elif command == "srun":
            found.rest = [word, *queue]
            return found
        else:
            dashed = f"--{word}" if word.partition("=")[0] in table else ""
            message = f"sbatch refuses {word!r}: it is neither an option nor an option's value"
            found.problems.append(Problem("stray-word", word, line, message, dashed))
    return found


def _read_long(
    word: str, queue: list[str], line: int, table: Mapping[str, Takes], command: str, found: Options
) -> None:
    typed, has_value, value = word[2:].partition("=")
    candidates = [typed] if typed in table else [name for name in table if name.startswith(typed)]
    if typed not in table and typed.startswith(_PLUGIN_PREFIXES):
        found.given.append(Given(typed, value, line, word))
        return
    if len(candidates) != 1 or not typed:
        found.problems.append(_unknown(word, typed, has_value + value, candidates, line, table, command))
        return
    name = candidates[0]
    takes, spelt = table[name], word
    if takes == "nothing" and has_value:
        message = f"--{name} takes no value, and {command} refuses {word!r}"
        found.problems.append(Problem("unwanted-value", word, line, message, f"--{name}"))
        return
    if takes == "value" and not has_value:
        if not queue:
            found.problems.append(Problem("missing-value", word, line, f"--{name} has no value"))
            return
        value = queue.pop(0)
        spelt = f"{word} {value}"
    found.given.append(Given(SYNONYMS.get(name, name), value, line, spelt))


def _read_short(
    word: str,
    queue: list[str],
    line: int,
    table: Mapping[str, Takes],
    short: Mapping[str, str],
    command: str,
    found: Options,
) -> None:
    letters = word[1:]
    while letters:
        letter, letters = letters[0], letters[1:]
        name = short.get(letter)
        if name is None:
            other = SRUN_SHORT.get(letter) if command == "sbatch" else None
            hint = f"; -{letter} is srun's (--{other}): write it on the srun line" if other else ""
            found.problems.append(Problem("unknown-option", word, line, f"{command} has no option -{letter}{hint}"))
            return
        takes = table[name]
        if takes == "nothing" or (takes == "maybe" and not letters):
            found.given.append(Given(name, "", line, f"-{letter}"))
            continue
        if not letters and not queue:
            found.problems.append(Problem("missing-value", word, line, f"-{letter} has no value"))
            return
        value = letters or queue.pop(0)
        if len(letters) > 2 and word.count("-") == 1 and word[1:].partition("=")[0] in table:
            message = f"{word} is read as -{letter} with the value {value!r}: a long option has two dashes"
            found.problems.append(Problem("unknown-option", word, line, message, f"-{word}"))
            return
        if letters.startswith("="):
            message = f"{command} reads {value!r} as the value of -{letter}: a short option has no ="
            found.problems.append(Problem("unknown-option", word, line, message, f"--{name}{letters}"))
            return
        found.given.append(Given(name, value, line, f"-{letter} {value}"))
        return


def _unknown(
    word: str, typed: str, value: str, candidates: Sequence[str], line: int, table: Mapping[str, Takes], command: str
) -> Problem:
    dashed = typed.replace("_", "-").lower()
    name = dashed if dashed in table else OTHER_WORDS.get(dashed) or nearest(dashed, table)
    instead = f"--{name}{value}" if name else ""
    if candidates and typed:
        message = f"--{typed} may mean {', '.join(f'--{name}' for name in candidates)}: {command} refuses it"
        return Problem("unknown-option", word, line, message, instead)
    if command == "sbatch" and typed in SRUN:
        message = f"--{typed} is srun's: sbatch refuses it"
        return Problem("unknown-option", word, line, message)
    message = f"{command} has no option --{typed}" + (f", did you mean --{name}?" if name else "")
    return Problem("unknown-option", word, line, message, instead)

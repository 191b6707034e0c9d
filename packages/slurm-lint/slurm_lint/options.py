"""Parse options of sbatch and srun, and their values. A result of None means that Slurm refuses the value.

The tables are those of Slurm 22.05 (sbatch(1), srun(1)) with the additions of later versions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from slurm_lint.words import nearest

Takes = Literal["value", "nothing", "maybe"]
DASHES = "\u2010\u2011\u2012\u2013\u2014\u2015\u2212"
"""The characters that look like a hyphen, and by which editors and web pages replace hyphens."""


def names_in(text: str) -> frozenset[str]:
    """Return the names in a text, in which blanks separate them."""
    return frozenset(text.split())


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.split(":") for pair in text.split())


_SHARED = _pairs("""A:account a:array b:begin D:chdir M:clusters C:constraint S:core-spec c:cpus-per-task d:dependency
    m:distribution e:error x:exclude B:extra-node-info G:gpus H:hold i:input J:job-name k:no-kill L:licenses F:nodefile
    w:nodelist N:nodes n:ntasks o:output O:overcommit s:oversubscribe p:partition q:qos Q:quiet t:time v:verbose
    V:version h:help""")
SBATCH_SHORT = _SHARED | {"W": "wait"}
SRUN_SHORT = _SHARED | _pairs("""W:wait K:kill-on-bad-exit l:label I:immediate r:relative T:threads u:unbuffered
    X:disable-status Z:no-allocate E:preserve-env""")
del SRUN_SHORT["a"]
MEMORY = ("mem", "mem-per-cpu", "mem-per-gpu")


def _table(value: str, nothing: str, maybe: str) -> dict[str, Takes]:
    kinds: Mapping[Takes, str] = {"value": value, "nothing": nothing, "maybe": maybe}
    return {name: takes for takes, names in kinds.items() for name in names.split()}


_BOTH = _table(
    """account acctg-freq bb bbf begin chdir cluster cluster-constraint clusters comment constraint container
    container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution error exclude export extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket
    gpus-per-task gres gres-flags hint input job-name jobid licenses mail-type mail-user mcs-label mem mem-bind
    mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu
    ntasks-per-node ntasks-per-socket ntasks-per-tres open-mode output partition power prefer priority profile
    qos reservation resources segment signal sockets-per-node switches tasks tasks-per-node thread-spec
    threads-per-core time time-min tmp tres-bind tres-per-job tres-per-node tres-per-task uid wckey""",
    """consolidate-segments contiguous external help hold overcommit oversubscribe quiet reboot spread-job
    spread-segments stepmgr test-only usage use-min-nodes verbose version""",
    "exclusive nice no-kill oom-kill-step propagate",
)
SBATCH: Mapping[str, Takes] = _BOTH | _table(
    "array batch export-file kill-on-invalid-dep wait-all-nodes wrap",
    "ignore-pbs no-requeue parsable requeue wait",
    "get-user-env",
)
SRUN: Mapping[str, Takes] = _BOTH | _table(
    """accel-bind bcast-exclude cpu-bind cpu_bind epilog het-group mpi msg-timeout pack-group prolog relative
    slurmd-debug task-epilog task-prolog threads wait""",
    """disable-status exact label multi-prog no-allocate overlap preserve-env pty quit-on-interrupt unbuffered whole""",
    "bcast compress immediate kill-on-bad-exit resv-ports send-libs x11",
)
# {alias: option}, for names that Slurm's own table maps to another option of the same meaning.
SYNONYMS = {"tasks": "ntasks", "tasks-per-node": "ntasks-per-node", "cpu_bind": "cpu-bind", "cluster": "clusters"}
SITE = names_in("image module volume entrypoint environment uenv view repo ear ear-policy ear-cov tmpfs x11 mpibind")
"""The options that common plugins add to sbatch and srun (Shifter, Sarus, uenv, EAR, X11, mpibind)."""
_SITE_FLAGS = names_in("x11 container-writable container-readonly container-remap-root container-mount-home")
# {name that other schedulers use, or that users guess: Slurm's name}.
OTHER_WORDS = _pairs("""num-nodes:nodes queue:partition name:job-name jobname:job-name num-gpus:gpus gpu:gpus ngpus:gpus
    workdir:chdir mem-per-node:mem memory:mem mail:mail-user email:mail-user share:oversubscribe cpus:cpus-per-task
    walltime:time nnodes:nodes node:nodes cores:cpus-per-task stdout:output stderr:error log:output project:account""")
_GUESSED = names_in("gpu num-gpus ngpus cpus cores mail")  # These are ambiguous, so they are not corrected.
OF_A_SITE = " is not an option of Slurm itself: sbatch refuses it unless a plugin of your site adds it"
_SIGNALS = names_in("HUP INT QUIT ABRT KILL ALRM TERM USR1 USR2 URG CONT STOP TSTP TTIN TTOU XCPU")


def is_of_plugin(name: str) -> bool:
    """Return whether an option is one that a common plugin adds."""
    return name in SITE or name.startswith(("container-", "no-container-"))


class Given(NamedTuple):
    """An option in a script or a command: its full name, its value ("" if it has none) and its line."""

    name: str
    value: str
    line: int


class OptionProblem(NamedTuple):
    """A word that is not a valid option, with the word to write `instead` (or ""); `of_srun`: srun has the option."""

    rule: str
    word: str
    line: int
    message: str
    instead: str = ""
    of_srun: bool = False


@dataclass
class Options:
    """The options in their order, the words that could not be parsed, and the words after the options."""

    given: list[Given] = field(default_factory=list)
    problems: list[OptionProblem] = field(default_factory=list)
    rest: list[str] = field(default_factory=list)

    def last(self, *names: str) -> Given | None:
        """Return the last option with one of these names, which is the one that takes effect; None without any."""
        return next((option for option in reversed(self.given) if option.name in names), None)

    def value(self, name: str) -> str | None:
        """Return the value of an option that takes effect; None if the option was not given."""
        option = self.last(name)
        return option.value if option else None


class _Reader:
    """Parses the words of one command as getopt_long does."""

    def __init__(self, command: Literal["sbatch", "srun"], line: int) -> None:
        self.command, self.line, self.found = command, line, Options()
        self.table, self.short = (SBATCH, SBATCH_SHORT) if command == "sbatch" else (SRUN, SRUN_SHORT)

    def problem(self, rule: str, word: str, message: str, instead: str = "", *, of_srun: bool = False) -> None:
        self.found.problems.append(OptionProblem(rule, word, self.line, message, instead, of_srun))

    def give(self, name: str, value: str = "") -> None:
        self.found.given.append(Given(SYNONYMS.get(name, name), value, self.line))

    def long(self, word: str, queue: list[str]) -> None:
        typed, has_value, value = word[2:].partition("=")
        known = [typed] if typed in self.table else [name for name in self.table if typed and name.startswith(typed)]
        if typed not in self.table and is_of_plugin(typed):
            self.problem("site-option", word, f"--{typed}{OF_A_SITE}")
            self.give(typed, value)
            flag = typed in _SITE_FLAGS or typed.startswith("no-")
            if not has_value and queue and not queue[0].startswith("-") and not flag:
                queue.pop(0)
        elif len(known) != 1:
            self._unknown(word, typed, has_value + value, known)
        elif self.table[known[0]] != "value" or has_value or queue:
            self.give(known[0], value if has_value or self.table[known[0]] != "value" else queue.pop(0))
        else:
            self.problem("malformed-option", word, f"--{known[0]} has no value")

    def letters(self, word: str, queue: list[str]) -> None:
        letter, rest = word[1], word[2:]
        while (name := self.short.get(letter)) and self.table[name] in (("nothing",) if rest else ("nothing", "maybe")):
            self.give(name)
            if not rest:
                return
            letter, rest = rest[0], rest[1:]
        if name is None:
            other = SRUN_SHORT.get(letter) if self.command == "sbatch" else None
            hint = f": -{letter} is an option of srun (--{other})" if other else ""
            self.problem("unknown-option", word, f"{self.command} has no option -{letter}{hint}", of_srun=bool(other))
        elif not rest and not queue:
            self.problem("malformed-option", word, f"-{letter} has no value")
        elif len(rest) > 2 and word.count("-") == 1 and word[1:].partition("=")[0] in self.table:
            message = f"{word} is read as -{letter} with the value {rest!r}: a long option has two dashes"
            self.problem("unknown-option", word, message, f"-{word}")
        elif rest.startswith("="):
            message = f"{self.command} reads {rest!r} as the value of -{letter}: a short option has no ="
            self.problem("unknown-option", word, message, f"--{name}{rest}")
        else:
            self.give(name, rest or queue.pop(0))

    def _unknown(self, word: str, typed: str, value: str, candidates: Sequence[str]) -> None:
        dashed = typed.replace("_", "-").lower()
        name = dashed if dashed in self.table else OTHER_WORDS.get(dashed) or nearest(dashed, self.table)
        rule, message, instead = "unknown-option", f"{self.command} has no option --{typed}", ""
        of_srun = not candidates and self.command == "sbatch" and typed in SRUN
        if typed in self.short:
            message, instead = f"{message}: one letter has one dash", f"-{typed}{value[1:]}"
        elif candidates:
            message = f"--{typed} may mean {', '.join(f'--{each}' for each in candidates)}: {self.command} refuses it"
        elif of_srun:
            message = f"--{typed} is an option of srun: sbatch refuses it"
        elif name:
            message, instead = f"{message}; did you mean --{name}?", "" if dashed in _GUESSED else f"--{name}{value}"
        else:
            rule, message = "site-option", f"--{typed}{OF_A_SITE}"
        self.problem(rule, word, message, instead, of_srun=of_srun)


def read_options(words: Sequence[str], line: int, command: Literal["sbatch", "srun"]) -> Options:
    """Parse options as getopt_long does: `--name=value`, `--name value`, `--nam`, `-N2`, `-N 2`, `-vN2`.

    A word that is not an option ends the options of srun. For sbatch, it is a problem.
    """
    reader, queue = _Reader(command, line), list(words)
    while queue:
        word = queue.pop(0)
        if command == "srun" and (word == "--" or not re.match(f"-.|[{DASHES}]", word)):
            reader.found.rest = queue if word == "--" else [word, *queue]
            break
        if word.startswith(tuple(DASHES)):
            typed = word.lstrip(DASHES + "-")
            message = f"{word!r} begins with a typographic dash: {command} does not read it as an option"
            reader.problem("typographic-dash", word, message, ("-" if typed[1:2] in ("", "=") else "--") + typed)
            if "=" not in word and queue and not queue[0].startswith("-") and command == "sbatch":
                queue.pop(0)
        elif word.startswith("--"):
            reader.long(word, queue)
        elif word.startswith("-") and len(word) > 1:
            reader.letters(word, queue)
        else:
            dashed = f"--{word}" if word.partition("=")[0] in reader.table else ""
            message = f"sbatch refuses {word!r}: it is neither an option nor the value of one"
            reader.problem("malformed-option", word, message, dashed)
    return reader.found


def count(text: str | None) -> int | None:
    """Parse a whole number of at least 1; return None if Slurm refuses the text (0, -1, 0x10, 1k)."""
    return int(text) if text and re.fullmatch(r"\+?\d{1,9}", text) and int(text) > 0 else None


def node_range(text: str | None) -> tuple[int, int] | None:
    """Return the minimum and the maximum of a number of nodes such as `2` or `2-4`; None if absent or refused."""
    if not text or not re.fullmatch(r"\d{1,9}k?(-\d{1,9}k?)?", text):
        return None
    ends = [int(end.rstrip("k")) * (1024 if "k" in end else 1) for end in text.split("-")]
    return (ends[0], ends[-1]) if 0 < ends[0] <= ends[-1] else None


def gpus_in_gres(text: str) -> int | None:
    """Return the number of GPUs in a value of --gres: `gpu`, `gpu:4`, `gpu:a100:4` or a list; None if it is refused.

    A type can begin with a digit only if a number follows (`gpu:2080ti:4`). Otherwise, Slurm reads it as the number.
    """
    total = 0
    for item in (item for item in text.split(",") if item not in ("", "none", "help")):
        item = item.removeprefix("gres:").replace("gres/", "", 1)
        match = re.fullmatch(r"([A-Za-z_][\w-]*)(?::(?:[\w.-]+:)?(\d+)([kKmMgGtT]?)|:[A-Za-z_][\w.-]*)?", item)
        model = match and match[1] == "gpu" and match[2] and (match[3] or len(match[2]) > 3)
        # `gpu:3090` is meant as a model, because no node has a thousand GPUs. No cluster calls the resource `gpus`.
        if not match or model or match[1] == "gpus":
            return None
        total += int(match[2] or 1) * (match[1] == "gpu")
    return total


def gpu_count(text: str | None) -> int | None:
    """Return the number of GPUs in `4`, `a100:4`, `2080ti:4`, `tesla` (1) or a list; None if Slurm refuses the text."""
    form = r"(?:(?!gpu:)[\w.-]+:)?(\d+)|[A-Za-z_][\w.-]*\d[\w.-]*|[a-z]{5,}"
    found = [re.fullmatch(form, item) for item in (text or "").split(",")]
    return sum(int(match[1] or 1) for match in found if match) if all(found) else None


class SignalRequest(NamedTuple):
    """A signal (`--signal`): its name, its time before the job's end in s, and whether only the batch shell gets it."""

    name: str
    lead_s: int
    to_batch_shell: bool


def rising_array(text: str) -> str | None:
    """Return the text of an array's indices (`0-7`, `1,3,5`, `0-7%2`) unchanged; None if Slurm refuses the text."""
    form = r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?|\[.*\].*"
    rising = all(int(first) <= int(last) for first, last in re.findall(r"(\d+)-(\d+)", text))
    return text if rising and re.fullmatch(form, text) else None


def signal_request(text: str) -> SignalRequest | None:
    """Parse a value of --signal, `[{R|B}:]SIGNAL[@seconds]`; return None if Slurm refuses the value."""
    match = re.fullmatch(r"(?:([RrBb]{1,2}):)?([A-Za-z]+\d?|\d{1,2})(?:@(\d{1,5}))?", text)
    if not match:
        return None
    name, lead = match[2].upper().removeprefix("SIG"), int(match[3] or 60)  # 60 s is the default in sbatch(1).
    known = 0 < int(name) < 65 if name.isdigit() else name in _SIGNALS
    # Slurm stores the seconds in 16 bits.
    return SignalRequest(name, lead, "B" in (match[1] or "").upper()) if known and lead < 65_535 else None

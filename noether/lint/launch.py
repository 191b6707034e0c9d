"""Which programs does a command line start, one inside another: srun → apptainer → torchrun → python?"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from noether.lint.options import Options, read_options
from noether.lint.shell import Command, Variables, Word, declared, read_commands

Neighbour = Callable[[str], str | None]
"""Returns the text of a file that a script names, or None."""
Kind = Literal["srun", "mpirun", "per-node", "container", "shell", "python", "noether", "submitit", "other"]

PER_NODE = {"torchrun", "accelerate", "deepspeed", "torch.distributed.launch", "torch.distributed.run"}
_MPIRUN = {"mpirun", "mpiexec", "orterun", "mpiexec.hydra"}
_CONTAINER = {"apptainer", "singularity"}
_PREFIXES: Mapping[str, tuple[str, ...]] = {
    # Programs that run what follows, with those of their options that take a value.
    "exec": (), "eval": (), "time": (), "nohup": (), "command": (), "setsid": (), "stdbuf": (), "catchsegv": (),
    "sudo": (),
    "env": ("-u",), "nice": ("-n",), "timeout": ("-k", "-s"), "ionice": ("-c", "-n"), "taskset": ("-c",),
    "numactl": ("-N", "-m", "-C", "-i"), "poetry": (), "uv": (), "pixi": (), "conda": ("-n", "-p"), "chrt": (),
    "micromamba": ("-n", "-p"), "shifter": ("--image",), "nsys": ("-o", "-t"),
}  # fmt: skip
_SECOND_WORD = {"poetry": "run", "uv": "run", "pixi": "run", "conda": "run", "micromamba": "run", "nsys": "profile"}
_CONTAINER_FLAGS = {
    "--nv",
    "--rocm",
    "--nvccli",
    "--cleanenv",
    "-e",
    "--contain",
    "-c",
    "--containall",
    "-C",
    "--compat",
    "--fakeroot",
    "-f",
    "--writable",
    "-w",
    "--writable-tmpfs",
    "--no-home",
    "--no-init",
    "--no-umask",
    "--no-eval",
    "--no-privs",
    "--pid",
    "-p",
    "--ipc",
    "-i",
    "--userns",
    "-u",
    "--net",
    "--uts",
    "--keep-privs",
    "--allow-setuid",
    "--unsquash",
    "--disable-cache",
    "--no-https",
    "--passphrase",
    "--no-pid",
    "--sharens",
    "--underlay",
}
_TORCHRUN_FLAGS = {"standalone", "no_python", "module", "use_env", "help", "run_path", "virtual_local_rank"}
_MPI_FLAGS = {
    "--oversubscribe",
    "--allow-run-as-root",
    "--tag-output",
    "--report-bindings",
    "--nolocal",
    "-nolocal",
    "--bynode",
    "-bynode",
    "--byslot",
    "--verbose",
    "-v",
    "-q",
    "--quiet",
    "--display-map",
    "--display-allocation",
    "--use-hwthread-cpus",
    "-bind-to-core",
    "--pernode",
    "-pernode",
    "--noprefix",
    "--mca-base-env-list",
    "-prepend-rank",
    "-l",
}
PER_TASK_VARIABLES = ("SLURM_PROCID", "SLURM_NODEID", "SLURM_LOCALID", "SLURM_TASK_PID")
"""Variables that differ from task to task; the batch shell has those of task 0."""


@dataclass(frozen=True)
class Layer:
    """One program of a chain, with its options (leading dashes gone, `-` written `_` but for srun)."""

    kind: Kind
    name: str
    options: Mapping[str, str]
    line: int
    words: tuple[Word, ...] = ()
    slurm: Options | None = None
    """srun's options."""

    def option(self, *names: str) -> str | None:
        """Returns the value of the first of these options that was given."""
        return next((self.options[name] for name in names if name in self.options), None)


@dataclass(frozen=True)
class Launch:
    """A command that starts something, as the chain of programs in it."""

    command: Command
    layers: tuple[Layer, ...]
    per_task: tuple[Command, ...] = ()
    """Commands that a shell inside (`srun bash -c …`, `srun ./wrapper.sh`) runs once per task."""
    assigned: Mapping[str, str] = field(default_factory=dict)
    """Variables that were set before the command, by what is known of them."""

    @property
    def line(self) -> int:
        """The line on which the command begins."""
        return self.command.line

    def layer(self, kind: Kind) -> Layer | None:
        """Returns the outermost program of a kind."""
        return next((layer for layer in self.layers if layer.kind == kind), None)

    @property
    def innermost(self) -> Layer:
        """The program that all others lead to."""
        return self.layers[-1]

    @property
    def trains(self) -> bool:
        """Whether it runs a program that may be one rank of several."""
        return any(layer.kind in ("per-node", "python", "noether", "submitit") for layer in self.layers)


class Chain:
    """Reads the programs of a command, one after another."""

    def __init__(self, variables: Variables, neighbour: Neighbour) -> None:
        self.variables, self.neighbour = variables, neighbour
        self.layers: list[Layer] = []
        self.per_task: list[Command] = []

    def read(self, words: Sequence[Word], depth: int = 0) -> None:
        """Adds the layers of a command line."""
        queue = self.variables.splice(words)
        for _ in range(30):
            queue = _without_prefixes(queue)
            if not queue or depth > 3:
                return
            following = self._layer(queue, depth)
            if following is None:
                return
            queue = self.variables.splice(following)

    def _add(self, kind: Kind, name: str, queue: Sequence[Word], options: Mapping[str, str] | None = None) -> None:
        self.layers.append(Layer(kind, name, options or {}, queue[0].line, tuple(queue)))

    def _layer(self, queue: list[Word], depth: int) -> list[Word] | None:
        """Adds one layer, and returns the words of the next or None."""
        line, rest = queue[0].line, queue[1:]
        name = self.variables.expand(queue[0].text).rsplit("/", 1)[-1]
        if name == "srun":
            texts = [self.variables.expand(word.text) for word in rest]
            slurm = read_options(texts, line, "srun")
            self.layers.append(Layer("srun", name, {o.name: o.value for o in slurm.given}, line, tuple(queue), slurm))
            return rest[len(rest) - len(slurm.rest) :] if slurm.rest else None
        if name in _MPIRUN:
            options, rest = _mpi_options(rest)
            self._add("mpirun", name, queue, options)
            return rest
        if name in _CONTAINER and rest and rest[0].text in ("exec", "run"):
            options, inner = _container_options(rest[1:])
            self._add("container", name, queue, options)
            if rest[0].text == "run" and inner and inner[0].text not in ("python", "python3", "bash", "torchrun"):
                # What an image's own door makes of its arguments is known for ours alone.
                verb = inner[0].text
                self._add("noether" if verb == "train" else "other", verb, inner)
                return None
            return inner
        if name == "torchrun":
            return self._per_node(name, queue, rest)
        if name == "accelerate" and rest and rest[0].text == "launch":
            return self._per_node(name, queue, rest[1:])
        if name == "deepspeed":
            return self._per_node(name, queue, rest)
        if re.fullmatch(r"python[\d.]*|pypy3?|ipython", name):
            return self._python(queue, rest)
        if name in ("bash", "sh", "zsh", "dash") or name.endswith((".sh", ".bash")):
            self._shell(name, queue, rest, depth)
            return None
        if name in ("noether", "noether-train"):
            trains = name == "noether-train" or (rest and rest[0].text == "train")
            self._add("noether" if trains else "other", name, queue)
        elif name.endswith(".py"):
            self._add("python", self.variables.expand(queue[0].text), queue)
        else:
            self._add("other", name, queue)
        return None

    def _per_node(self, name: str, queue: list[Word], rest: list[Word]) -> list[Word]:
        options: dict[str, str] = {}
        while rest and rest[0].text.startswith("-") and rest[0].text != "-":
            typed, has_value, value = rest[0].raw.lstrip("-").partition("=")
            key = {"m": "module"}.get(typed, typed).replace("-", "_")
            rest = rest[1:]
            follows = bool(rest) and not rest[0].text.startswith("-")
            known_flag = key in _TORCHRUN_FLAGS
            loose = name in ("accelerate", "deepspeed") and follows and rest[0].text.endswith(".py")
            if not has_value and not known_flag and follows and not loose:
                value, rest = rest[0].raw, rest[1:]
            options[key] = value
        self._add("per-node", name, queue, options)
        if "module" in options or (rest and rest[0].text.endswith(".py")):
            module = not (rest and rest[0].text.endswith(".py"))
            if rest:
                self._python_program(rest, module=module)
            return []
        return rest

    def _python(self, queue: list[Word], rest: list[Word]) -> list[Word] | None:
        while rest and rest[0].text.startswith("-") and rest[0].text not in ("-", "-m", "-c"):
            takes_value = rest[0].text in ("-W", "-X")
            rest = rest[2:] if takes_value else rest[1:]
        if not rest or rest[0].text == "-c":
            self._add("other", "python -c", queue)
            return None
        if rest[0].text != "-m":
            self._python_program(rest, module=False)
            return None
        module = rest[1].text if len(rest) > 1 else ""
        if module in ("torch.distributed.launch", "torch.distributed.run"):
            return self._per_node(module, queue, rest[2:])
        if module in ("accelerate.commands.launch", "deepspeed.launcher.runner"):
            return self._per_node(module.partition(".")[0], queue, rest[2:])
        self._python_program(rest[1:] or queue, module=True)
        return None

    def _python_program(self, words: list[Word], module: bool) -> None:
        name = self.variables.expand(words[0].text)
        arguments = [word.text for word in words[1:]]
        if module and name.startswith("submitit"):
            self._add("submitit", name, words)
        elif (name == "noether" if module else name.endswith("entrypoint.py")) and arguments[:1] == ["train"]:
            self._add("noether", name, words)
        elif module and name.partition(".")[0] in ("pip", "venv", "json", "http", "noether", "timeit", "zipfile"):
            self._add("other", name, words)
        else:
            self._add("python", name, words)

    def _shell(self, name: str, queue: list[Word], rest: list[Word], depth: int) -> None:
        self._add("shell", name, queue)
        flags = [word.text for word in rest[:3]]
        if name in ("bash", "sh", "zsh", "dash"):
            position = next((i for i, flag in enumerate(flags) if re.fullmatch(r"-[a-z]*c[a-z]*", flag)), None)
            if position is not None and position + 1 < len(rest):
                word = rest[position + 1]
                whole = re.fullmatch(r'"?\$\{?(\w+)\}?"?', word.raw)
                known = self.variables.values.get(whole[1]) if whole else None
                inner = known if known is not None else inner_script(word.raw)
                self._inner(read_commands(inner, word.line), depth)
                return
            rest = [word for word in rest if not word.text.startswith("-")]
            path = self.variables.expand(rest[0].text) if rest else ""
        else:
            path = self.variables.expand(queue[0].text)
        text = self.neighbour(path)
        if text is not None:
            # Another file has its own line numbers; what is found there is reported where it is started.
            line = queue[0].line
            found = read_commands(text)
            self._inner([_at_line(command, line) for command in found], depth)

    def _inner(self, commands: Sequence[Command], depth: int) -> None:
        for command in commands:
            self.per_task.append(command)
            for name, word in declared(command):
                if name not in self.variables.values:
                    self.variables.set(name, word.raw)
        for command in commands:
            if command.words and command.name not in ("export", "echo", "cd", "source", "module", "set", "."):
                self.read(command.words, depth + 1)


def _at_line(command: Command, line: int) -> Command:
    words = tuple(Word(word.raw, line) for word in command.words)
    assignments = tuple((name, Word(word.raw, line)) for name, word in command.assignments)
    return Command(words, assignments, line, line, command.before, command.after, command.depth)


def inner_script(raw: str) -> str:
    """Returns what an inner shell reads of a quoted word; what the outer shell expands is @early:NAME@."""
    if raw.startswith('"') and raw.endswith('"') and len(raw) > 1:
        text = raw[1:-1]
        names = "|".join((*PER_TASK_VARIABLES, "HOSTNAME", "SLURMD_NODENAME"))
        text = re.sub(rf"(?<!\\)\$\{{?({names})\b\}}?", r"@early:\1@", text)
        text = re.sub(r"(?<!\\)\$\(\s*hostname[^()]*\)|(?<!\\)`hostname[^`]*`", "@early:hostname@", text)
        return re.sub(r'\\([\\"`$])', r"\1", text)
    return raw[1:-1] if raw.startswith("'") and raw.endswith("'") and len(raw) > 1 else Word(raw, 0).text


def _without_prefixes(words: list[Word]) -> list[Word]:
    """Drops `env A=1`, `time`, `timeout 60` and the like."""
    while words:
        name = words[0].text.rsplit("/", 1)[-1]
        if name not in _PREFIXES:
            return words
        rest = words[1:]
        if name in _SECOND_WORD:
            if not rest or rest[0].text != _SECOND_WORD[name]:
                return words
            rest = rest[1:]
        while rest and (rest[0].text.startswith("-") or (name == "env" and "=" in rest[0].text)):
            rest = rest[2:] if rest[0].text in _PREFIXES[name] else rest[1:]
        words = rest[1:] if name == "timeout" else rest
    return words


def _container_options(words: list[Word]) -> tuple[dict[str, str], list[Word]]:
    """Reads the options of `apptainer exec`, and drops the image."""
    options: dict[str, str] = {}
    while words and words[0].text.startswith("-"):
        name, has_value, value = words[0].text.partition("=")
        words = words[1:]
        if not has_value and name not in _CONTAINER_FLAGS and words:
            value, words = words[0].text, words[1:]
        options[name] = value
    return options, words[1:]


def _mpi_options(words: list[Word]) -> tuple[dict[str, str], list[Word]]:
    options: dict[str, str] = {}
    while words and words[0].text.startswith("-"):
        name, has_value, value = words[0].text.partition("=")
        words = words[1:]
        if name in ("-mca", "--mca", "-gmca", "--gmca", "-genv"):
            words = words[2:]
            continue
        if not has_value and name not in _MPI_FLAGS and words:
            value, words = words[0].raw, words[1:]
        options[name.lstrip("-")] = value
    return options, words


def find_launches(commands: Sequence[Command], neighbour: Neighbour) -> tuple[list[Launch], Variables]:
    """Returns what a script starts, in order, and the variables as its end leaves them."""
    variables = Variables()
    launches: list[Launch] = []
    for command in commands:
        for name, word in declared(command):
            variables.set(name, word.raw)
        if not command.words or command.name in ("export", "declare", "set", "echo", "printf", "trap", "alias"):
            continue
        chain = Chain(Variables(dict(variables.values)), neighbour)
        chain.read(command.words)
        if chain.layers:
            launches.append(Launch(command, tuple(chain.layers), tuple(chain.per_task), dict(variables.values)))
    return launches, variables

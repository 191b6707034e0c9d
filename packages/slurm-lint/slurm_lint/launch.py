"""The chain of programs that a command line starts: srun → apptainer → torchrun → python."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Literal

from slurm_lint.options import Options, names_in, read_options
from slurm_lint.programs import Program
from slurm_lint.script import Script
from slurm_lint.shell import Command, ShellText, Word, split_words, unquote
from slurm_lint.variables import Variables, mark_early, pieces

Kind = Literal["srun", "mpirun", "per-node", "container", "shell", "python", "ranks", "submitit", "other"]
"""The kind of a program. per-node: torchrun and similar launchers. ranks: a taught program (`programs.Program`)."""

_MPIRUN = {"mpirun", "mpiexec", "orterun", "mpiexec.hydra", "prun", "ibrun"}
_SHELLS = {"bash", "sh", "zsh", "dash", "ksh"}
_PREFIXES: Mapping[str, tuple[str, str]] = {
    # {program that runs the rest of its line: (required next word, its options with a value)}; *: all options.
    **dict.fromkeys(names_in("exec time nohup command setsid catchsegv sudo chrt taskset"), ("", "")),
    "stdbuf": ("", "-o -e -i"), "env": ("", "-u"), "nice": ("", "-n"), "timeout": ("", "-k -s --signal --kill-after"),
    "ionice": ("", "-c -n"), "numactl": ("", "-N -m -C -i --cpunodebind --membind"), "pixi": ("run", "-e"),
    **dict.fromkeys(("conda", "mamba", "micromamba"), ("run", "-n -p")), "perf": ("stat", "*"),
    **dict.fromkeys(("poetry", "pipenv", "coverage"), ("run", "")), "nsys": ("profile", "*"), "perun": ("monitor", ""),
    "uv": ("run", "--with --project --python -p --extra --group"), "xvfb-run": ("", "-e -f -n -p -s -w"),
    "ncu": ("", "-o --set --target-processes -k"), "shifter": ("", "--image --volume --module --env -V -e -m"),
}  # fmt: skip
# Options without a value, in these tables without their dashes.
_APPTAINER_FLAGS = names_in(
    """nv rocm nvccli cleanenv e contain c containall C compat fakeroot f writable w silent s writable_tmpfs no_home
    no_init no_umask no_eval no_privs pid p ipc i userns u net uts keep_privs underlay debug d quiet q verbose v"""
)
_DOCKER_FLAGS = names_in("i t it ti d rm init privileged interactive tty detach read_only P")
_LAUNCHER_FLAGS = names_in(  # Of torchrun, accelerate, deepspeed and mpirun.
    """standalone no_python m module use_env help run_path virtual_local_rank multi_gpu cpu tpu use_deepspeed use_fsdp
    same_network force no_local_rank no_ssh_check no_ssh debug quiet enable_each_rank_log oversubscribe v q l verbose
    allow_run_as_root tag_output report_bindings nolocal bynode byslot display_map display_allocation display
    use_hwthread_cpus bind_to_core pernode noprefix prepend_rank nooversubscribe"""
)
_PAIRS = names_in("mca gmca genv env")  # Options of mpirun with two values.
_RENDEZVOUS = names_in("nproc_per_node nnodes node_rank rdzv_backend rdzv_endpoint rdzv_conf master_addr master_port")
_NOT_RUN = names_in("set echo printf trap alias cd source . module ml read shift return exit wait kill [ test export")
SHELL_WORDS = names_in("cd source . export module")
"""Shell builtins and functions. Programs with these names do not exist or have no effect."""
_LAUNCHERS = {"torch.distributed.launch": "torch.distributed.launch", "torch.distributed.run": "torch.distributed.run",
              "accelerate.commands.launch": "accelerate", "deepspeed.launcher.runner": "deepspeed"}  # fmt: skip
_TOOLS = names_in("pip venv json http timeit zipfile ensurepip site virtualenv nltk spacy torch.utils.collect_env")


@dataclass(frozen=True)
class Layer:
    """One program of a chain: its words, and its options without leading dashes, with _ for - except for srun."""

    kind: Kind
    name: str
    words: Sequence[Word]
    options: Mapping[str, str] = field(default_factory=dict)
    slurm: Options = field(default_factory=Options)
    """srun's options."""

    @property
    def line(self) -> int:
        """The line of the program's name."""
        return next((word.line for word in self.words if word.text == self.name), self.words[0].line)

    def option(self, *names: str) -> str | None:
        """Return the value of the first of the named options that the program has; None if it has none of them."""
        return next((self.options[name] for name in names if name in self.options), None)


@dataclass(frozen=True)
class Launch:
    """A command that starts a chain of programs, each of which starts the next one."""

    command: Command
    layers: tuple[Layer, ...]
    shells: tuple[ShellText, ...] = ()
    """The scripts of the shells in the chain (`srun bash -c …`, `srun ./wrapper.sh`), which run in each task."""
    expands: str = ""
    """The text that only the shells in the chain expand: other files, and words in single quotes."""
    variables: Variables = field(default_factory=Variables)
    """The variables that are known when the command starts."""

    @property
    def line(self) -> int:
        """The line on which the command begins."""
        return self.command.line

    def layer(self, kind: Kind) -> Layer | None:
        """Return the first program of a kind in the chain; None if there is none."""
        return next((layer for layer in self.layers if layer.kind == kind), None)

    @property
    def innermost(self) -> Layer:
        """The last program of the chain."""
        return self.layers[-1]

    @property
    def runs_script(self) -> bool:
        """True if a taught program runs a user's script. It then ends the other ranks itself when a rank fails."""
        return self.layer("ranks") is not None and self.innermost.kind == "python"

    @property
    def trains(self) -> bool:
        """True if the launch runs a program that may be one rank of several."""
        return any(layer.kind in ("per-node", "python", "ranks", "submitit") for layer in self.layers)


class _Chain:
    """Reads the programs of a command in order, including the programs in the scripts of its shells."""

    def __init__(self, script: Script, variables: Variables, programs: Sequence[Program], component: int) -> None:
        self.script, self.variables, self.programs, self.component = script, variables, programs, component
        self.layers, self.shells, self.expands, self.depth = list[Layer](), list[ShellText](), "", 0
        self.heredoc: str | None = None

    def read(self, command: Command) -> None:
        runs = command.node.type == "command" and command.name not in _NOT_RUN
        queue = self.variables.splice(command.words) if runs else []
        for _ in range(30):
            if queue and queue[0].text == "eval":
                text = " ".join(self.variables.expand(word.text) for word in queue[1:])
                queue = self.variables.splice(split_words(text, queue[0].line))
            queue = _without_prefixes(queue)
            if not queue or self.depth > 3:
                return
            queue = self.variables.splice(self._layer(queue))

    def _add(self, kind: Kind, name: str, words: Sequence[Word], options: Mapping[str, str] | None = None) -> None:
        self.layers.append(Layer(kind, name, words, options or {}))

    def _layer(self, queue: list[Word]) -> list[Word]:
        """Add the first program of the words as a layer; return the words of the next program."""
        path, rest = self.variables.expand(queue[0].text), queue[1:]
        name = path.rsplit("/", 1)[-1]
        if name == "srun":
            return self._srun(queue)
        if name in _MPIRUN:
            return self._mpirun(name, queue)
        if (plain := name.removeprefix("bsc_")) in ("apptainer", "singularity", "docker", "podman", "podman-hpc"):
            return self._container(plain, queue)
        if name in ("torchrun", "deepspeed") or [name, *(word.text for word in rest[:1])] == ["accelerate", "launch"]:
            return self._per_node(name, queue, rest[1:] if name == "accelerate" else rest)
        if re.fullmatch(r"i?python[\d.]*|pypy3?|\$\{?\w*PYTHON\w*\}?", name):
            return self._python(queue)
        if name in _SHELLS or name.endswith((".sh", ".bash")):
            self._shell(name, queue)
        elif not self._taught(queue):
            python = name.endswith(".py") or name == "llamafactory-cli"
            self._add("python" if python else "other", path if python else name, queue)
        return []

    def _srun(self, queue: list[Word]) -> list[Word]:
        parts = _parts(queue[1:])
        group = [Word(f"--het-group={self.component}", queue[0].line)] if len(parts) > 1 else []
        queue = [queue[0], *group, *parts[min(self.component, len(parts) - 1)]]
        slurm = read_options([self.variables.expand(word.text) for word in queue[1:]], queue[0].line, "srun")
        self.layers.append(Layer("srun", "srun", queue, {option.name: option.value for option in slurm.given}, slurm))
        return queue[len(queue) - len(slurm.rest) :]

    def _mpirun(self, name: str, queue: list[Word]) -> list[Word]:
        parts = [_read(words, _LAUNCHER_FLAGS) for words in _parts(queue[1:])]
        options, rest = parts[0]
        if len(parts) > 1:
            options["np"] = f"$(({' + '.join(each.get('np', each.get('n', '?')) for each, _ in parts)}))"
        self._add("mpirun", name, queue, options)
        return rest

    def _container(self, name: str, queue: list[Word]) -> list[Word]:
        if not {"exec", "run", "shell"} & {word.text for word in queue[1:2]}:
            self._add("other", name, queue)
            return []
        options, rest = _read(queue[2:], _APPTAINER_FLAGS if name in ("apptainer", "singularity") else _DOCKER_FLAGS)
        self._add("container", name, queue, options)
        return [] if rest and self._taught(rest, image=True) else rest[1:]

    def _per_node(self, name: str, queue: list[Word], rest: list[Word]) -> list[Word]:
        options, rest = _read(rest, _LAUNCHER_FLAGS)
        for typed in list(options):  # argparse accepts abbreviated names.
            if len(whole := [name for name in _RENDEZVOUS if name.startswith(typed)]) == 1:
                options[whole[0]] = options.pop(typed)
        self._add("per-node", name, queue, options)
        if not rest or not (rest[0].text.endswith(".py") or {"m", "module"} & set(options)):
            return rest
        self._python_program(rest, module=not rest[0].text.endswith(".py"))
        return []

    def _python(self, queue: list[Word]) -> list[Word]:
        rest = queue[1:]
        while rest and rest[0].text.startswith("-") and rest[0].text not in ("-", "-m", "-c"):
            rest = rest[2:] if rest[0].text in ("-W", "-X") else rest[1:]
        first, module = [*(word.text for word in rest[:2]), "", ""][:2]
        if first.rsplit("/", 1)[-1] in ("torchrun", "accelerate", "deepspeed"):
            return rest  # As in: python `which torchrun`
        if first in ("", "-c", "-"):
            self._add("other", "python -c", queue)
        elif first == "-m" and module in _LAUNCHERS:
            return self._per_node(_LAUNCHERS[module], queue, rest[2:])
        else:
            self._python_program((rest[1:] or queue) if first == "-m" else rest, module=first == "-m")
        return []

    def _python_program(self, words: list[Word], module: bool) -> None:
        name = self.variables.expand(words[0].text)
        tool = module and bool({name, name.partition(".")[0]} & _TOOLS)
        if not self._taught(words):
            submitit = module and name.startswith("submitit")
            self._add("submitit" if submitit else "other" if tool else "python", name, words)

    def _taught(self, words: list[Word], *, image: bool = False) -> bool:
        """If the words start a taught program, add it and its user's script, and return True; else return False."""
        texts = [self.variables.expand(word.text) for word in words]
        for program in self.programs:
            if (script := program.script_word(texts, image=image)) is not None:
                self._add("ranks", texts[0].rsplit("/", 1)[-1], words)
                if script:
                    self._add("python", texts[script].removeprefix("--module=").removeprefix("-m="), words[script:])
                return True
        return False

    def _shell(self, name: str, queue: list[Word]) -> None:
        self._add("shell", name, queue)
        named = name in _SHELLS
        files = [word for word in queue[1:] if not word.text.startswith("-")] if named else queue[:1]
        pairs = pairwise(queue[1:6] if named else ())
        command = next((then for word, then in pairs if re.fullmatch(r"-[a-z]*c[a-z]*", word.text)), None)
        if command is not None:
            written = command.raw in self.script.text.replace("\\\n", "") and self.depth == 0
            self.expands += pieces(command.raw, quoted=True) if written else ""
            word = unquote(mark_early(command.raw).replace(r"\$", "\0"))
            known = self.variables.expand(word) if command.raw[0] == '"' else word
            elsewhere = known.count("\n") != word.count("\n")
            self._inner(ShellText(known.replace("\0", "$"), command.line, on_one_line=elsewhere))
        elif files:
            # Report findings in another file on the line that starts the file.
            text = self.script.neighbour(self.variables.expand(files[0].text)) or ""
            self.expands += text
            self._inner(ShellText(text, queue[0].line, on_one_line=True))
        elif self.heredoc is not None:
            self._inner(ShellText(self.heredoc, queue[0].line + 1))

    def _inner(self, shell: ShellText) -> None:
        self.heredoc = None  # A here-document belongs to the outer shell only.
        self.depth += 1
        self.shells.append(shell)
        for command in shell.commands:
            if any(name not in self.variables.values for name, _ in command.declared):
                self.variables.assign(command, per_task=True)
        for command in shell.commands:
            self.read(command)
        self.depth -= 1


def _without_prefixes(words: list[Word]) -> list[Word]:
    """Return the words without prefixes such as `env A=1`, `time` or `timeout 60`."""
    while words and (name := words[0].text.rsplit("/", 1)[-1]) in _PREFIXES:
        second, valued = _PREFIXES[name]
        if second and second not in [word.text for word in words[1:2]]:
            return words
        rest = words[2:] if second else words[1:]
        while rest and (rest[0].text.startswith("-") or (name == "env" and "=" in rest[0].text)):
            word = rest[0].text
            any_takes = valued == "*" and "=" not in word and (word[:2] == "--" or len(word) == 2)
            rest = rest[2:] if any_takes or word in valued.split() else rest[1:]
        words = rest[1:] if name in ("timeout", "taskset") else rest
    return words


def _parts(words: Sequence[Word]) -> list[list[Word]]:
    """Split the words of srun or mpirun at each colon, which separates programs: `srun -n1 ./a : -n3 ./b`."""
    return [list(part) for colon, part in groupby(words, lambda word: word.raw == ":") if not colon] or [[]]


def _read(words: list[Word], flags: frozenset[str]) -> tuple[dict[str, str], list[Word]]:
    """Return {option: value} of a program, and the words after its options; a word ending in .py is never a value."""
    options: dict[str, str] = {}
    while words and words[0].text.startswith("-") and words[0].text not in ("-", "--"):
        name = words[0].text.partition("=")[0].lstrip("-").replace("-", "_")
        _, has_value, value = words[0].raw.partition("=")
        words = words[1:]
        follows = words and not words[0].text.startswith("-") and not words[0].text.endswith(".py")
        if name in _PAIRS:
            words = words[2:]
        elif not has_value and name not in flags and follows:
            value, words = words[0].raw, words[1:]
        options[name] = value
    return options, words[1:] if words and words[0].text == "--" else words


def find_launches(script: Script, programs: Sequence[Program] = ()) -> tuple[list[Launch], Variables]:
    """Return the launches of a script in order, and the variables that are known at the script's end."""
    variables = Variables()
    launches: list[Launch] = []
    for command in script.commands:
        variables.assign(command)
        if command.node.type != "command":
            continue
        before = Variables(dict(variables.values))
        for component in range(len(_parts(command.words)) if "srun" in command.texts else 1):
            chain = _Chain(script, Variables(dict(variables.values)), programs, component)
            chain.heredoc = next((x for x, line, _ in script.shell.heredocs if line == command.last_line + 1), None)
            chain.read(command)
            if chain.layers:
                launches.append(Launch(command, tuple(chain.layers), tuple(chain.shells), chain.expands, before))
    return launches, variables

"""`noether lint`: slurm-lint extended to understand `noether train` and `noether run` in job scripts."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.launch.batches import plan_batches
from noether.launch.script import refuse_others
from slurm_lint.command import run_lint
from slurm_lint.finding import Finding
from slurm_lint.job import Job
from slurm_lint.launch import Launch
from slurm_lint.launch_rules import world_size
from slurm_lint.rules import Rule
from slurm_lint.words import UsageError

TrainLine = tuple[tuple[str, ...], str | None]
"""The overrides and the settings file in a line `noether train …` or `noether run …`."""
ReadLine = Callable[[tuple[str, ...]], TrainLine | None]
"""A function that reads the words after `noether` as the command line does; it returns None if they are invalid."""
VERBS = ("train", "run")
RULES = (
    Rule("NTH220", "batch-not-divisible", "error",
         "The effective batch is a multiple of the ranks. (With --hp, or for a script's own noether train.)"),
    Rule("NTH221", "configuration-refused", "error", "The configuration of the script's noether train is wrong."),
)  # fmt: skip


def lint(words: Sequence[str], hp: str | None, read_line: ReadLine, **flags: Any) -> int:
    """Lint the files among the words, and treat the other words as overrides; return the exit code.

    `flags`: see `slurm_lint.command.run_lint`. RequestError: a flag has a wrong value, or no file can be read.
    """
    own = [word for word in words if "=" in word.partition("/")[0] or word.startswith(("+", "~"))]
    paths = [word for word in words if word not in own]
    try:
        return run_lint(paths, programs=(NoetherLines(read_line, hp, own),), **flags)
    except UsageError as error:
        fix = error.fix.replace("slurm-lint", "noether lint") or "noether submit --dry-run      (writes a job script)"
        if fix.endswith("JOB.sh"):
            fix += (" --hp " if paths[0].endswith((".yaml", ".yml")) else " ") + paths[0]
        raise RequestError("nothing-to-lint", error.summary, fix=fix) from None


class NoetherLines:
    """Extends slurm-lint to the lines of `noether train` and `noether run` (a `slurm_lint.programs.Program`).

    `hp` and `overrides` define a configuration, whose batch the ranks of each linted job must be able to share.
    """

    rules: Sequence[Rule] = RULES

    def __init__(self, read_line: ReadLine, hp: str | None = None, overrides: Sequence[str] = ()) -> None:
        self.read_line, self.hp, self.overrides = read_line, hp, tuple(overrides)

    def script_word(self, words: Sequence[str], *, image: bool) -> int | None:
        """Return the index of the script in `noether run`, 0 for `noether train`, and None for another program."""
        name = words[0].rsplit("/", 1)[-1]
        ours = "noether" in name if image else name in ("noether", "noether-train") or name.endswith("entrypoint.py")
        if not ours or not (name == "noether-train" or (words[1:2] and words[1] in VERBS)):
            return None
        for at in range(2, len(words) if words[1:2] == ["run"] else 0):
            flag = words[at].rpartition("=")[0]
            if words[at].endswith(".py") or {"-m", "--module"} & {flag, words[at - 1]}:
                return at
        return 0

    def check(self, job: Job) -> Iterator[Finding]:
        """Check the configuration of the command line or, if there is none, that of the script's `noether train`."""
        for launch in job.trainings:
            line: TrainLine | None = ((), self.hp) if self.hp or self.overrides else None
            if launch.layer("ranks"):
                line = self._own_line(job, launch)
            if line is not None:
                overrides = line[0] if launch.runs_script else (*line[0], *self.overrides)
                yield from _refused(job, launch, overrides, line[1])
                return

    def _own_line(self, job: Job, launch: Launch) -> TrainLine | None:
        """Return the overrides and settings file of a script's `noether` line; None if only the job can know them."""
        ours, inner = launch.layer("ranks"), launch.innermost
        if ours is None:
            return None
        words = ours.words if inner is ours else [*ours.words[: -len(inner.words)], inner.words[0]]
        texts = [launch.variables.expand(word.text) for word in launch.variables.splice(words)]
        texts = texts[1:] if texts[1:2] and texts[1] in VERBS else ["train", *texts[1:]]
        if {"-h", "--help"} & set(texts) or any(sign in text for text in texts for sign in ("$", "`", "@early")):
            return None
        if (line := self.read_line(tuple(texts))) is None:
            return None
        overrides, file = line
        if self.hp or file is None or file.startswith("/"):
            return overrides, self.hp or file
        if job.script.neighbour(file) is None:
            return None  # The file may exist in a folder to which the script changes.
        beside = job.script.path.parent / file
        return overrides, str(beside) if beside.is_file() else file


def _refused(job: Job, launch: Launch, overrides: tuple[str, ...], file: str | None) -> Iterator[Finding]:
    """Yield the reasons why `noether train` would refuse to train on the ranks of this launch."""
    rule = RULES[1]
    try:
        if launch.runs_script:
            refuse_others(overrides, launch.innermost.name)
        config = load_config(overrides, file)
        ranks, rule = world_size(job, launch), RULES[0]
        if ranks is not None and not launch.runs_script:
            plan_batches(config.trainer.effective_batch_size, None, ranks)
    except RequestError as error:
        seen = f" ({error.seen})" if error.seen and rule is RULES[1] else ""
        yield Finding(launch.line, rule.name, error.summary + seen, error.fix, taught=rule)

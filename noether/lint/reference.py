"""Writes docs/lint.md from the rules; `make docs` adds the table of precision (benchmarks/lint)."""

from noether.lint.rules import RULES

_INTRODUCTION = """\
# `noether lint`: what is wrong with a job script before it waits in the queue

```
noether lint job.sbatch                    # findings, each with what to write, and what the job would start
noether lint job.sbatch --format json      # or github (annotations), sarif (code scanning); --json for short
noether lint job.sbatch --fix              # writes job.fixed.sbatch beside it; the original is never changed
noether lint job.sbatch --hp my.yaml       # can the job's ranks share the batch of this configuration?
noether lint --rules                       # the rules, one a line
```

Any script for sbatch will do, whatever it starts: `srun python`, torchrun, accelerate, mpirun, apptainer, docker. A
folder is searched for the scripts that submitit writes; the job scripts in here-documents (`sbatch <<EOF`) and in a
README's code blocks are read as scripts of their own. Exit code: 1 where there are errors, 0 where there are warnings
or nothing, 2 where a file could not be read (the others are linted all the same).

**An error is certain**: sbatch or bash refuses it, or it cannot work whatever the program does. Where that depends on
the program being one rank of several, it is an error only if the script shows that it is (torchrun, `noether`, a
Python file beside it that reads RANK or WORLD_SIZE); otherwise it is a warning or nothing. What depends on the site
or on Slurm's version says so. What sbatch refuses was held against sbatch of Slurm 22.05, both ways (`tests/slurm`).

**To silence a rule** on one line, end the line with `# noether: ignore[NTH401]` (code or name; several with commas;
all without brackets). On an `#SBATCH` line sbatch reads no further than the `#`.

**`--fix` writes only what cannot be wrong**: line ends, a missing `#!`, `mkdir -p` in front of `sbatch <<EOF`,
`--kill-on-bad-exit`, `wait`, an exit code that is kept, torchrun in place of torch.distributed.launch with
`--use_env`. All else is a suggestion. The rest of the file stays as it was, byte for byte.

In a pre-commit configuration, with this repository as `repo`: `- id: noether-lint`.

This page is written by `make docs`.

"""


def reference(table: str) -> str:
    """Returns docs/lint.md, with the table of precision and recall."""
    lines = [_INTRODUCTION + table]
    for rule in RULES:
        lines += [f"## {rule.code} {rule.name}", "", f"{rule.level.capitalize()}. {rule.why}", ""]
        for title, text in (("Wrong", rule.wrong), ("Right", rule.right)):
            if text and "\0" not in text:
                shown = text.replace("\r", "␍").rstrip("\n")
                lines += [f"{title}:", "", "```bash", shown, "```", ""]
    return "\n".join(lines)

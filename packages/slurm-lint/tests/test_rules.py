"""Test each rule on a wrong and a right script; also right scripts of all kinds, --fix, and random scripts."""

# ruff: noqa: E501  (tables)

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from job_scripts import EVERYTHING, EXAMPLES, Example
from test_known_cases import WRONG

from slurm_lint.check import lint_text
from slurm_lint.command import fix_script
from slurm_lint.finding import Finding, apply
from slurm_lint.programs import Asked, Site
from slurm_lint.rules import BY_NAME, LEVELS, RULES
from slurm_lint.shell import ShellText

HERE = Path(__file__).parent
CLEAN = sorted((HERE / "clean").glob("*.sbatch"))
FOUND_WITH_OTHER_FILES = {"unreadable-file", "site-partition", "site-required"}
SITE = Asked(Site(partitions=("gpu", "cpu"), required=("A", "time"), options=("image",)))
JOB = Path("/nowhere/job.sbatch")


def lint(text: str, path: Path = JOB) -> tuple[Finding, ...]:
    return lint_text(text, path, EVERYTHING)[0]


def found(text: str, path: Path = JOB) -> list[tuple[str, str]]:
    return [(finding.rule, finding.level) for finding in lint(text, path)]


@pytest.mark.parametrize(("name", "example"), EXAMPLES.items(), ids=EXAMPLES.keys())
def test_each_rule_finds_its_fault_alone_and_the_right_script_clean(name: str, example: Example) -> None:
    assert {name for name, _ in found(example.wrong)} == {name}
    assert found(example.wrong)[0][1] == BY_NAME[name].level
    assert {finding.code for finding in lint(example.wrong)} == {BY_NAME[name].code}
    assert found(example.right) == []


def test_every_rule_has_an_example_and_codes_and_names_are_unique() -> None:
    assert {rule.name for rule in RULES} - FOUND_WITH_OTHER_FILES == set(EXAMPLES)
    assert len({rule.code for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)


SITE_SAYS = {  # {options of a job: the messages for a site}
    "-p cpu,gpus -A a --time=1": ["this site has no partition gpus; did you mean gpu?"],
    "-p cpu,gpu -A a -n1 --image=a.sif": ["this site requires --time"],
    "-p <yours> -A a --time=1": ["fill in <yours> before you submit"],
    "": [],
}


@pytest.mark.parametrize(("options", "messages"), SITE_SAYS.items())
def test_a_site_says_its_partitions_and_the_options_that_it_requires_and_adds(options, messages) -> None:
    assert [f.message for f in lint_text(f"#!/bin/bash\n#SBATCH {options}\nhostname\n", JOB, SITE)[0]] == messages


DESERVED = {"submitit": {"srun-cpus"}}


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_right_scripts_have_only_the_warnings_that_they_deserve(path: Path) -> None:
    findings = found(path.read_text(), path)
    assert {name for name, _ in findings} == DESERVED.get(path.stem, set())
    assert {level for _, level in findings} <= {"warning"}


TWO = "#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4\n"
EACH = TWO.replace("node=4 ", "node=1 ", 1)
W = "export WORLD_SIZE=8\n"
HOSTS = "scontrol show hostnames $SLURM_JOB_NODELIST"
DEFECTS = {  # name: (options, body, the rule that finds it)
    "hash-space-SBATCH": ("#SBATCH -n1\n# SBATCH --nodes=2\n", "hostname", "ignored-option"),
    "word-misspelt": ("#SBATCH -n1\n#SBTACH --error=e\n", "hostname", "ignored-option"),
    "option-below-set": ("", "set -e\n#SBATCH --nodes=2\nhostname", "ignored-option"),
    "long-option-one-dash": ("#SBATCH -nodes=2\n", "hostname", "unknown-option"),
    "srun-option": ("#SBATCH --kill-on-bad-exit=1\n", "hostname", "unknown-option"),
    "other-scheduler": ("#SBATCH --walltime=10\n", "hostname", "unknown-option"),
    "swallowed-by-or-true": (TWO, "srun -K python t.py || true", "exit-code-lost"),
    "swallowed-by-tee": (TWO, "srun -K python t.py | tee log", "exit-code-lost"),
    "swallowed-on-one-line": (TWO, "srun -K python t.py; echo done", "exit-code-lost"),
    "swallowed-by-exit-0": (TWO, "srun -K python t.py\necho done\nexit 0", "exit-code-lost"),
    "too-many-tasks": (TWO.replace("node=4 ", "node=8 ", 1), W + "srun -K python t.py", "one-rank-per-gpu"),
    "bare-torchrun": (EACH, "torchrun --nnodes=2 --nproc_per_node=4 t.py", "missing-srun"),
    "bare-training": (TWO, "python t.py", "missing-srun"),
    "bare-container": (TWO, "apptainer exec --nv t.sif python t.py", "missing-srun"),
    "endpoint-localhost": (EACH, "srun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 t.py", "master-is-localhost"),
    "hostname-in-quotes-for-the-inner-shell": (TWO, 'srun -K bash -c "export MASTER_ADDR=\\$(hostname); exec python t.py"', "master-per-task"),
    "signal-to-bare-python": ("#SBATCH --gpus=1 --signal=USR1@120\n", "python t.py", "signal-lost"),
    "trap-behind-foreground-srun": (TWO + "#SBATCH --signal=B:USR1@120\n", "trap x USR1\nsrun -K python t.py", "signal-lost"),
    "trap-without-B": (TWO + "#SBATCH --signal=USR1@120\n", "trap x USR1\nsrun -K python t.py", "signal-lost"),
    "mpirun-of-torchrun": (TWO, "mpirun -n 8 torchrun --nproc_per_node=4 t.py", "launcher-in-launcher"),
    "mpirun-of-torchrun-behind-two-dashes": (TWO, "mpirun -n 8 -- torchrun --nproc_per_node=4 t.py", "launcher-in-launcher"),
    "containall": (TWO, "srun -K singularity exec --nv -C t.sif python t.py", "separate-runs"),
    "master-is-the-last-of-the-hosts": (TWO, f"hosts=($({HOSTS}))\nexport MASTER_ADDR=${{hosts[-1]}}\nsrun -K python t.py", "master-not-first"),
    "master-is-every-host": (TWO, f"export MASTER_ADDR=$({HOSTS})\nsrun -K python t.py", "master-not-a-host"),
    "master-by-awk-in-braces": (TWO, f"export MASTER_ADDR=$({HOSTS} | awk 'NR == 2 {{print $1}}')\nsrun -K python t.py", "master-not-first"),
    "master-by-sed-delete": (TWO, f"export MASTER_ADDR=$({HOSTS} | sed '2!d')\nsrun -K python t.py", "master-not-first"),
    "master-is-the-login-host": (TWO, "export MASTER_ADDR=$SLURM_SUBMIT_HOST\nsrun -K python t.py", "master-not-a-host"),
    "one-node-of-two-for-noether": (EACH, "srun -K -N1 noether train trainer.effective_batch_size=64", "idle-nodes"),
    "in-a-function-of-one-line": (TWO, "function main { srun -K torchrun --nproc_per_node=4 --nnodes=2 t.py; }\nmain", "launcher-per-task"),
    "by-eval": (TWO, 'CMD="srun -K torchrun --nproc_per_node=4 --nnodes=2 t.py"\neval "$CMD"', "launcher-per-task"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "body", "rule"), DEFECTS.values(), ids=DEFECTS.keys())
def test_one_fault_is_one_finding(options, body, rule) -> None:
    assert [name for name, _ in found(f"#!/bin/bash\n{options}{body}\n")] == [rule]


def test_a_program_beside_the_script_says_what_it_is(tmp_path: Path) -> None:
    path, text = (
        tmp_path / "job.sbatch",
        "#!/bin/bash\n#SBATCH -N1 --ntasks-per-node=2 --gpus-per-node=4\nsrun -K python t.py\n",
    )
    (tmp_path / "t.py").write_text("import torch.multiprocessing as mp\nmp.spawn(run, nprocs=4)\n")
    for line in (text, text.replace("python t.py", "noether run t.py")):
        assert found(line, path) == []
    (tmp_path / "t.py").write_text("torch.distributed.init_process_group()\n")
    assert found(text, path) == [("one-rank-per-gpu", "error")]
    (tmp_path / "t.py").write_text("import jax\n")
    assert found(text, path) == []


README = """# Training
We use 4 nodes × 8 GPUs: `sbatch --node 2 job.sh` takes 3 h.

```bash
#SBATCH --ntask=2
hostname
```
"""


def test_a_readme_has_its_scripts_read_and_its_prose_left_alone() -> None:
    findings = lint(README, Path("/nowhere/README.md"))
    assert [(f.line, f.rule, f.level) for f in findings] == [(5, "unknown-option", "error")]


FIXED = {  # name: (before, after)
    "line-ends": ("#!/bin/bash\r\nhostname\r\n", "#!/bin/bash\nhostname\n"),
    "no-shebang": ("#SBATCH -n1\nhostname\n", "#!/bin/bash\n#SBATCH -n1\nhostname\n"),
    "first-line-that-lacks-its-sign": ("!/bin/bash\n#SBATCH --time=1:00:00\nhostname\n", "#!/bin/bash\n#SBATCH --time=1:00:00\nhostname\n"),
    "header-above-the-first-line": ("# MIT\n\n#!/bin/bash\nhostname\n", "#!/bin/bash\n# MIT\n\nhostname\n"),
    "kill-on-bad-exit": (f"#!/bin/bash\n{EACH}srun torchrun --nnodes=2 --nproc_per_node=4 t.py\n", f"#!/bin/bash\n{EACH}srun --kill-on-bad-exit=1 torchrun --nnodes=2 --nproc_per_node=4 t.py\n"),
    "wait": ("#!/bin/bash\npython t.py &\n", "#!/bin/bash\npython t.py &\nwait $!\n"),
    "folder-of-a-job-that-is-submitted-here": ("#!/bin/bash\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --output=no/logs/%j.out\nhostname\nEOF\n", "#!/bin/bash\nmkdir -p no/logs\nsbatch <<EOF\n#!/bin/bash\n#SBATCH --output=no/logs/%j.out\nhostname\nEOF\n"),
    "the-same-twice": (f"#!/bin/bash\n{EACH}srun torchrun --nnodes=2 --nproc_per_node=4 t.py\nsrun torchrun --nnodes=2 --nproc_per_node=4 t.py\n", f"#!/bin/bash\n{EACH}srun --kill-on-bad-exit=1 torchrun --nnodes=2 --nproc_per_node=4 t.py\nsrun --kill-on-bad-exit=1 torchrun --nnodes=2 --nproc_per_node=4 t.py\n"),
    "byte-order-mark": ("\xef\xbb\xbf#!/bin/bash\n#SBATCH -n1\nhostname\n", "#!/bin/bash\n#SBATCH -n1\nhostname\n"),
    "in-windows-line-ends": ("#!/bin/bash\r\necho h\xe9\r\n", "#!/bin/bash\necho h\xe9\n"),
}  # fmt: skip


@pytest.mark.parametrize(("before", "after"), FIXED.values(), ids=FIXED.keys())
def test_what_is_fixed_is_the_whole_script_and_fixed_once(before: str, after: str) -> None:
    data, left = fix_script(before.encode("latin-1"), JOB, EVERYTHING)
    assert data == after.encode("latin-1")
    assert not any(finding.edit and finding.edit.safe for finding in left)
    assert fix_script(data, JOB, EVERYTHING)[0] == data


UNTOUCHED = {  # Only the author can correct these: numbers, options of other programs, launchers.
    "tasks": f"#!/bin/bash\n{TWO}#SBATCH --ntasks=2\n{W}srun -K python t.py\n",
    "time": "#!/bin/bash\n#SBATCH --time=2h\nhostname\n",
    "port": f"#!/bin/bash\n{TWO.replace('gpus-per-node=4', 'gpus-per-node=2')}export MASTER_PORT=29500\nsrun -K python t.py\n",
    "two-jobs-in-the-background": "#!/bin/bash\npython a.py &\npython b.py &\n",
    "no-shell-script": "import os\nprint(f'{os.getcwd()}')\nclass A: pass\n",
    "tasks-that-may-be-no-ranks": f"#!/bin/bash\n{TWO}srun python t.py\n",
}


@pytest.mark.parametrize("text", UNTOUCHED.values(), ids=UNTOUCHED.keys())
def test_what_its_author_must_decide_is_left(text: str) -> None:
    data, left = fix_script(text.encode(), JOB, EVERYTHING)
    assert data == text.encode()
    assert left


@pytest.mark.parametrize("example", EXAMPLES.values(), ids=EXAMPLES.keys())
def test_fixing_an_example_leaves_no_edit_and_no_new_finding(example: Example) -> None:
    before = [finding.rule for finding in lint_text(example.wrong, JOB, EVERYTHING)[0]]
    data, left = fix_script(example.wrong.encode(), JOB, EVERYTHING)
    assert not any(finding.edit and finding.edit.safe for finding in left)
    assert [finding.rule for finding in left] == (before if data == example.wrong.encode() else [])


WRONG_SCRIPTS = {
    **{name: example.wrong for name, example in EXAMPLES.items()},
    **{name: f"#!/bin/bash\n{options}{body}\n" for name, (options, body, _) in (WRONG | DEFECTS).items()},
}


@pytest.mark.parametrize("text", WRONG_SCRIPTS.values(), ids=WRONG_SCRIPTS.keys())
def test_a_fix_changes_the_script_removes_its_finding_and_brings_no_other(text: str) -> None:
    findings = lint(text)
    before = Counter(finding.rule for finding in findings)
    for finding in findings:
        assert not finding.fix or finding.fix != text.split("\n")[finding.line - 1].strip()
        if finding.edit:
            changed = apply(text, finding.edit)
            after = Counter(rule for rule, _ in found(changed))
            assert changed != text
            assert after[finding.rule] < before[finding.rule]
            assert not after - before


SHOWN = {  # name: (script, the expected fix): the whole corrected line, with its other options
    "other-options-of-the-line": (f"{TWO.replace('node=4 ', 'node=2 ', 1)}{W}srun -K python t.py", "#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4"),
    "by-its-letter": (f"#SBATCH -N2 -n4 --gpus-per-node=4\n{W}srun -K python t.py", "#SBATCH -N2 -n8 --gpus-per-node=4"),
    "tasks-that-are-given-win": (f"{EACH}#SBATCH --ntasks=4\nsrun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$H:$P t.py", "#SBATCH --ntasks=2"),
    "above-the-first-command": ("hostname\n#SBATCH --nodes=2", "#SBATCH --nodes=2      (above line 3)"),
    "behind-the-last-option": ("#SBATCH --requeue\nhostname", "#SBATCH --open-mode=append"),
    "would-wait-as-the-first-on-each-node": (f"{EACH}torchrun --nnodes=2 --nproc_per_node=4 t.py", ""),
    "would-tell-another-code": ("python t.py\necho ended with $?", "code=$? after it and exit $code at the end, or set -e before it"),
    "tasks-of-the-step-decide": (f"{EACH}{W}srun -K -n2 python t.py", ""),
    "value-with-blanks": ("#SBATCH --mail-user=first last\nhostname", "quotes around a value with blanks, or # before a comment"),
    "program-that-may-be-no-rank": ("#SBATCH -N2 --gpus-per-node=2\npython t.py", "srun, where each task is a rank"),
    "hostfile-nobody-knows": (f"{EACH}deepspeed t.py", "--hostfile=FILE, a line `HOST slots=GPUS` for each node"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "fix"), SHOWN.values(), ids=SHOWN.keys())
def test_what_to_write_is_shown_as_it_is_to_stand(text: str, fix: str) -> None:
    (finding,) = lint(f"#!/bin/bash\n#SBATCH --gpus=1\n{text}\n" if "gpus" not in text else f"#!/bin/bash\n{text}\n")
    assert finding.fix == fix


WORDS = st.sampled_from(
    ["#SBATCH", "#!", "#!/bin/bash\n", "-N", "--nodes=", "2", "-n", "--ntasks=4", "--gres=gpu:4", "srun", "torchrun", "python", "t.py", "-m", "torch.distributed.launch", "mpirun", "&", "&&", "|", "||\n", "", "", ";", "(", ")", "{", "}", "$(", "`", '"', "'", "\\", "\n", "<<EOF", "EOF", "bash", "-c", "export", "MASTER_ADDR=", "$X", "${X}", "$((1+", "hetjob", "apptainer", "docker", "exec", "run", "if", "then", "fi", "for", "do", "done\n", "case", "esac", "f()", "", "#", "=4", "trap", "wait", "exit", "$?", ">", "<", "noether", "train", "--het-group=0,7", "4", "nodes", "×", "8", "GPUs", "0", "–n", "[", "]"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(WORDS, max_size=40).map(" ".join), st.text(max_size=200), st.binary(max_size=200)))
def test_nothing_makes_it_fail(text: str | bytes) -> None:
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    for name in ("job.sbatch", "README.md"):
        findings, _ = lint_text(text, Path("/nowhere") / name)
        assert all(f.line >= 1 and f.level in LEVELS and f.message and f.code for f in findings)


@pytest.mark.parametrize("text", ["x{\U000f9730", "{0\U0010779e", "echo {🚀", "${🚀}", "<<🚀\n🚀"])
def test_no_character_ends_the_process(text: str) -> None:
    """After a brace, each of these characters would make the grammar's scanner read beyond the end of a libc table."""
    for _ in range(20):
        lint_text("#!/bin/bash\n" + text, JOB)


def test_a_word_beyond_ascii_is_read_as_it_is_written() -> None:
    words = ShellText("srun –n 4 'Ångström…' \u00a0x 🚀\n").commands[0].texts
    assert words == ["srun", "–n", "4", "Ångström…", "\u00a0x", "🚀"]


def test_a_script_as_deep_as_a_file_may_be_is_read() -> None:
    for text in ("(" * 50_000, "if true; then " * 5_000, '$("' * 5_000, "a=(" * 5_000, "#SBATCH -n1 " * 50_000):
        lint_text("#!/bin/bash\n" + text, JOB)

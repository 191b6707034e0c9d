"""Does each rule find its defect, and nothing else; and is nothing found in scripts that are right?"""

# ruff: noqa: E501  (tables)

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from noether.errors import RequestError
from noether.lint.check import lint_files, lint_text, mend
from noether.lint.rules import RULES, rules_reference

HERE = Path(__file__).parent
CLEAN = sorted((HERE / "clean").glob("*.sbatch"))
WITH_EXAMPLE = [rule for rule in RULES if rule.bad or rule.good]


def found(text: str, path: Path = Path("/nowhere/job.sbatch")) -> list[tuple[str, str]]:
    return [(finding.rule, finding.level) for finding in lint_text(text, path)[0]]


@pytest.mark.parametrize("rule", WITH_EXAMPLE, ids=lambda rule: rule.name)
def test_each_rule_finds_its_defect_alone_and_the_mended_script_clean(rule) -> None:
    assert {name for name, _ in found(rule.bad)} == {rule.name}
    assert found(rule.bad)[0][1] == rule.level
    assert found(rule.good) == []


DESERVED = {"torchrun_rendezvous": {"fixed-port"}, "single_gpu": {"ignored-option"}, "submitit": {"kill-on-bad-exit"}}


@pytest.mark.parametrize("path", CLEAN, ids=lambda path: path.stem)
def test_right_scripts_have_only_the_warnings_that_they_deserve(path: Path) -> None:
    findings = found(path.read_text(), path)
    assert {name for name, _ in findings} == DESERVED.get(path.stem, set())
    assert {level for _, level in findings} <= {"warning"}


G = "#SBATCH --gres=gpu:4\n#SBATCH -c 8\n"
QUESTION = {
    "one-launcher-a-node": (
        "#SBATCH --ntasks=4 --nodes=4 --ntasks-per-node=1\n" + G,
        "srun -K python -m torch.distributed.launch --nproc_per_node=4 --use_env main.py",
        {"deprecated-launcher": "warning", "separate-runs": "warning"},
    ),
    "sixteen-gpus-and-four-tasks": (
        "#SBATCH --ntasks=4 --nodes=4 --ntasks-per-node=4\n" + G,
        "srun -K python main.py",
        {"ntasks-override": "error"},
    ),
    "sixty-four-processes-on-sixteen-gpus": (
        "#SBATCH --ntasks=16 --nodes=4 --ntasks-per-node=4\n" + G,
        "srun -K torchrun --nnodes=4 --nproc_per_node=4 main.py",
        {"launcher-per-task": "error"},
    ),
}


@pytest.mark.parametrize(("options", "body", "expected"), QUESTION.values(), ids=QUESTION.keys())
def test_the_three_scripts_of_a_popular_question(options, body, expected) -> None:
    assert dict(found(f"#!/bin/bash\n{options}{body}\n")) == expected


TWO = "#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4 -c8\n"
DEFECTS = {
    "hash-space-SBATCH": ("# SBATCH --nodes=2\n", "hostname", "ignored-option"),
    "option-below-set": ("", "set -e\n#SBATCH --nodes=2\nhostname", "ignored-option"),
    "long-option-one-dash": ("#SBATCH -nodes=2\n", "hostname", "unknown-option"),
    "srun-option": ("#SBATCH --kill-on-bad-exit=1\n", "hostname", "unknown-option"),
    "other-scheduler": ("#SBATCH --walltime=10\n", "hostname", "unknown-option"),
    "swallowed-by-or-true": (TWO, "srun -K python t.py || true", "exit-code-lost"),
    "swallowed-by-tee": (TWO, "srun -K python t.py | tee log", "exit-code-lost"),
    "swallowed-on-one-line": (TWO, "srun -K python t.py; echo done", "exit-code-lost"),
    "too-many-tasks": (TWO.replace("node=4 ", "node=8 ", 1), "srun -K python t.py", "one-rank-per-gpu"),
    "bare-torchrun": (TWO.replace("node=4 ", "node=1 ", 1), "torchrun --nnodes=2 --nproc_per_node=4 t.py", "missing-srun"),
    "bare-noether": (TWO, "noether train trainer.effective_batch_size=64", "missing-srun"),
    "endpoint-localhost": (
        TWO.replace("node=4 ", "node=1 ", 1),
        "srun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_endpoint=localhost:0 t.py",
        "master-is-localhost",
    ),
    "hostname-in-quotes-for-the-inner-shell": (
        TWO,
        'srun -K bash -c "export MASTER_ADDR=\\$(hostname); exec python t.py"',
        "master-per-task",
    ),
    "signal-to-bare-python": ("#SBATCH --gpus=1 -c8 --signal=USR1@120\n", "python t.py", "signal-lost"),
    "trap-behind-foreground-srun": (TWO + "#SBATCH --signal=B:USR1@120\n", "trap x USR1\nsrun -K python t.py", "signal-lost"),
    "trap-without-B": (TWO + "#SBATCH --signal=USR1@120\n", "trap x USR1\nsrun -K python t.py", "signal-lost"),
    "job-exports-nothing": (TWO + "#SBATCH --export=NONE\n", "export MASTER_PORT=$((1+SLURM_JOB_ID))\nsrun -K python t.py", "export-drops"),
    "mpirun-of-torchrun": (TWO, "mpirun -n 8 torchrun --nproc_per_node=4 t.py", "launcher-in-launcher"),
    "containall": (TWO, "srun -K singularity exec --nv -C t.sif python t.py", "container-cleanenv"),
    "loopback": (TWO, "export NCCL_SOCKET_IFNAME=lo\nsrun -K python t.py", "nccl-interface"),
    "master-is-the-last-of-the-hosts": (
        TWO,
        "hosts=($(scontrol show hostnames $SLURM_JOB_NODELIST))\nexport MASTER_ADDR=${hosts[-1]}\nsrun -K python t.py",
        "master-not-first",
    ),
    "master-is-every-host": (TWO, "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST)\nsrun -K python t.py", "master-not-a-host"),
    "master-is-cut-from-the-list": (TWO, "export MASTER_ADDR=$(echo $SLURM_NODELIST | cut -d, -f1)\nsrun -K python t.py", "master-not-a-host"),
    "swallowed-by-exit-0": (TWO, "srun -K python t.py\necho done\nexit 0", "exit-code-lost"),
    "in-a-function-of-one-line": (TWO.replace("node=4 ", "node=1 ", 1), "function main { srun -K python t.py; }\nmain", "one-rank-per-gpu"),
    "by-eval": (TWO.replace("node=4 ", "node=1 ", 1), 'CMD="srun -K python t.py"\neval "$CMD"', "one-rank-per-gpu"),
    "master-by-awk-in-braces": (TWO, "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | awk 'NR == 2 {print $1}')\nsrun -K python t.py", "master-not-first"),
    "master-is-what-awk-saw-last": (TWO, "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | awk 'END{print}')\nsrun -K python t.py", "master-not-first"),
    "master-by-sed-delete": (TWO, "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed '2!d')\nsrun -K python t.py", "master-not-first"),
    "master-by-sed-quit": (TWO, "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed '2q;d')\nsrun -K python t.py", "master-not-first"),
    "master-is-line-12": (TWO, "export MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | sed -n 12p)\nsrun -K python t.py", "master-not-first"),
    "master-is-the-second-word": (TWO, "hosts=$(scontrol show hostnames $SLURM_JOB_NODELIST)\nexport MASTER_ADDR=$(echo $hosts | awk '{print $2}')\nsrun -K python t.py", "master-not-first"),
    "node-list-as-an-option's-host": (TWO, "srun -K python t.py --master-addr $SLURM_NODELIST", "master-not-a-host"),
    "node-list-in-a-url": (TWO, "srun -K python t.py --dist-url=tcp://$SLURM_JOB_NODELIST:2345", "master-not-a-host"),
    "node-list-by-way-of-a-variable": (TWO, "host=$SLURM_NODELIST\nsrun -K python t.py --host $host", "master-not-a-host"),
    "node-list-for-ssh": (TWO, "ssh $SLURM_NODELIST nvidia-smi\nsrun -K python t.py", "master-not-a-host"),
    "node-list-in-a-loop": (TWO, "for host in $SLURM_JOB_NODELIST; do echo $host; done\nsrun -K python t.py", "master-not-a-host"),
    "one-node-of-two-for-torchrun": (TWO.replace("node=4 ", "node=1 ", 1), "srun -K -N 1 torchrun --standalone --nproc_per_node=4 t.py", "idle-nodes"),
    "one-node-of-two-for-noether": (TWO.replace("node=4 ", "node=1 ", 1), "srun -K -N1 noether train trainer.effective_batch_size=64", "idle-nodes"),
    "bare-behind-a-step-that-makes-folders": (TWO, "srun -K -n2 mkdir -p /tmp/data\npython t.py", "missing-srun"),
    "bare-training-behind-a-preparing-step": (TWO, "srun -K python prepare.py\npython train.py", "missing-srun"),
    "bare-torchrun-behind-a-step": (TWO.replace("node=4 ", "node=1 ", 1), "srun -K nvidia-smi\ntorchrun --nnodes=2 --nproc_per_node=4 t.py", "missing-srun"),
    "one-task-on-eight-gpus": ("#SBATCH --ntasks=1 --gres=gpu:8 -c8\n", "python t.py", "idle-gpus"),
    "one-task-on-eight-gpus-in-a-container": ("#SBATCH --ntasks=1 --gres=gpu:8 -c8\n", "apptainer exec --nv t.sif python t.py", "idle-gpus"),
    "one-step-on-eight-gpus": ("#SBATCH --ntasks=1 --gres=gpu:8 -c8\n", "srun -K python t.py", "one-rank-per-gpu"),
    "docker-has-4": (TWO + "# 2 nodes with 8 GPUs each\n", "srun -K python t.py", "claim-mismatch"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "body", "rule"), DEFECTS.values(), ids=DEFECTS.keys())
def test_one_defect_is_one_finding(options, body, rule) -> None:
    assert [name for name, _ in found(f"#!/bin/bash\n{options}{body}\n")] == [rule]


def test_a_folder_made_of_the_job_s_number_is_mended_in_the_file_s_name_and_submitit_s_is_right(tmp_path: Path) -> None:
    text = f"#!/bin/bash\n#SBATCH --output={tmp_path}/%j/out.log\n{TWO}srun -K python t.py\n"
    (finding,) = lint_text(text, tmp_path / "job.sbatch")[0]
    assert (finding.rule, finding.fix) == ("output-folder", f"#SBATCH --output={tmp_path}/%j-out.log")
    assert found(text.replace("t.py", "-m submitit.core._submit x"), tmp_path / "job.sbatch") == []


def test_the_folder_of_several_submitit_jobs_names_the_newest(tmp_path: Path) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "12_submission.sh").write_text("#!/bin/bash\n")
    with pytest.raises(RequestError, match=f"noether lint {tmp_path}/12"):
        lint_files([str(tmp_path)])


def test_spawn_in_a_python_file_under_srun_is_found(tmp_path: Path) -> None:
    (tmp_path / "t.py").write_text("import torch.multiprocessing as mp\nmp.spawn(run, nprocs=4)\n")
    text = f"#!/bin/bash\n{TWO}srun -K python t.py\n"
    assert found(text, tmp_path / "job.sbatch") == [("spawn-under-srun", "error")]


SUMS = {
    "with-each-in-brackets": ("Runs on 4 nodes with 8 GPUs each (16 GPUs).", "Runs on 4 nodes with 8 GPUs each (32 GPUs)."),
    "the-sum-first": ("Uses 16 GPUs (4 nodes × 8 GPUs)", "Uses 32 GPUs (4 nodes × 8 GPUs)"),
    "for-a-total-of": ("4 nodes, 8 A100s per node, for a total of 16 GPUs", "4 nodes, 8 A100s per node, for a total of 32 GPUs"),
    "in-total": ("4 nodes x 8 H100 GPUs, 16 GPUs in total", "4 nodes x 8 H100 GPUs, 32 GPUs in total"),
    "gpus-before-nodes": ("8 GPUs per node × 4 nodes = 16 GPUs", "8 GPUs per node × 4 nodes = 32 GPUs"),
    "a-right-sum": ("4 nodes × 8 GPUs = 32 (32 GPUs); 16 GPUs (2 nodes × 8 GPUs)", None),
    "times-of-runs": ("from 1 node, 8 GPUs: 12 h to 4 nodes, 8 GPUs: 3.5 h; 4 nodes with 8 GPUs is 2 times faster", None),
    "a-share-of-each-node": ("16 GPUs across 4 nodes = 4 GPUs per node; 4 nodes × 4 GPUs = 4 ranks per node", None),
    "as-a-sentence": ("4 nodes with 8 GPUs are 16 GPUs.", "4 nodes with 8 GPUs are 32 GPUs."),
    "other-numbers": ("4 nodes with 8 GPUs, 16 CPUs and 80 GB; 1 GPU per task, 16 GPUs or 8 GPUs on 4 nodes", None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "fix"), SUMS.values(), ids=SUMS.keys())
def test_what_a_readme_says_of_nodes_and_gpus(text, fix) -> None:
    findings, _ = lint_text(text, Path("/nowhere/README.md"))
    assert [(f.rule, f.fix) for f in findings] == ([("claim-arithmetic", fix)] if fix else [])


def test_a_launcher_in_quotes_is_mended_within_them() -> None:
    command = "srun -K bash -c 'python -m torch.distributed.launch --nproc_per_node=4 --nnodes=2 t.py'"
    findings, _ = lint_text(
        f"#!/bin/bash\n{TWO.replace('node=4', 'node=1', 1)}{command}\n", Path("/nowhere/job.sbatch")
    )
    fixes = [f.fix for f in findings if f.rule == "deprecated-launcher"]
    assert fixes == ["srun -K bash -c 'torchrun --nproc_per_node=4 --nnodes=2 t.py'"]


def test_a_readme_whose_numbers_do_not_add_up() -> None:
    text = "# Training\n\nWe use 4 nodes × 8 GPUs = 16.\n\n```bash\n#SBATCH --bogus\nhostname\n```\n"
    findings, _ = lint_text(text, Path("/nowhere/README.md"))
    assert [(f.line, f.rule) for f in findings] == [(3, "claim-arithmetic"), (6, "unknown-option")]


@pytest.mark.parametrize("rule", [rule for rule in WITH_EXAMPLE if "\0" not in rule.bad], ids=lambda rule: rule.name)
def test_what_is_mended_lints_clean_and_is_mended_once(rule) -> None:
    path = Path("/nowhere/job.sbatch")
    before = {f.rule for f in lint_text(rule.bad, path)[0] if f.edit}
    text, left = mend(rule.bad, path)
    assert (text == rule.bad) == ({f.rule for f in left} >= before) or not before
    assert mend(text, path)[0] == text


WORDS = st.sampled_from(
    ["#SBATCH", "#!", "-N", "--nodes=", "2", "-n", "--ntasks=4", "--gres=gpu:4", "srun", "torchrun", "python", "-m", "torch.distributed.launch", "mpirun", "&", "&&", "|", "||\n", "", "", "", ";", "(", ")", "{", "}", "$(", "`", '"', "'", "\\", "\n", "<<EOF", "EOF", "bash", "-c", "export", "MASTER_ADDR=", "$X", "${X}", "$((1+", "hetjob", "apptainer", "exec", "if", "then", "fi", "for", "do", "done\n", "", "", "", "#", "=4", "trap", "wait", "exit", "$?", ">", "<", "noether", "train", "--het-group=0,7", "4", "nodes", "×", "8", "GPUs", "0"]
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(st.one_of(st.lists(WORDS, max_size=40).map(" ".join), st.text(max_size=200), st.binary(max_size=200)))
def test_nothing_makes_it_fail(text: str | bytes) -> None:
    text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
    for name in ("job.sbatch", "README.md"):
        findings, _ = lint_text(text, Path("/nowhere") / name)
        assert all(f.line >= 1 and f.level in ("error", "warning") and f.message for f in findings)


def test_the_page_is_written_from_the_table() -> None:
    assert (HERE.parents[1] / "docs" / "lint.md").read_text() == rules_reference()

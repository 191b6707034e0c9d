"""`noether lint`: the checks of `noether train` and `noether run` that it adds to slurm-lint, and wrong calls."""

import json
from pathlib import Path

import pytest

from noether.cli.binding import read_train_line
from noether.cli.job_commands import lint as run_lint_command
from noether.jobs.lint import RULES, NoetherLines, lint
from slurm_lint.check import lint_text
from slurm_lint.programs import Asked
from tests.refusal import refusal

TWO = "#!/bin/bash\n#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4\n"
EACH = TWO.replace("node=4 ", "node=1 ")
NINE, SHARED_BY_NONE = "trainer.effective_batch_size=9", ["batch-not-divisible"]
KNOWN = Asked(programs=(NoetherLines(read_train_line),))
LINES = {  # name: (options, line, expected rules)
    "a-batch-that-its-ranks-share": (TWO, "srun -K noether train trainer.effective_batch_size=64", []),
    "a-batch-that-they-do-not": (TWO, f"srun -K noether train {NINE}", SHARED_BY_NONE),
    "in-its-image": (TWO, f"srun -K apptainer exec --nv a/noether.sif train {NINE}", SHARED_BY_NONE),
    "as-a-module": (EACH, f"srun -K python -m noether train {NINE}", SHARED_BY_NONE),
    "by-its-other-name": (EACH, f"srun -K noether-train {NINE}", SHARED_BY_NONE),
    "by-its-entrypoint": (EACH, f"srun -K python entrypoint.py train {NINE}", SHARED_BY_NONE),
    "a-setting-that-is-none": (TWO, "srun -K noether train trainer.precison=bf16", ["configuration-refused"]),
    "a-setting-that-is-no-script-s": (TWO, "srun noether run seed=3 train.py", ["configuration-refused"]),
    "a-setting-of-a-launch": (TWO, "srun noether run accelerator=tpu train.py", ["configuration-refused"]),
    "what-is-known-when-it-runs": (TWO, "srun -K noether train trainer.effective_batch_size=$BATCH", []),
    "a-module-of-the-user-s": (TWO, "srun python -m noether run --module=pkg.train --lr $LR seed=a", []),
    "a-script-of-the-user-s": (TWO, "srun noether run train.py --ranks 7 trainer.effective_batch_size=7", []),
    "one-node-of-two": (TWO, "noether run train.py", ["missing-srun"]),
    "tasks-that-see-no-others": (TWO, "srun apptainer exec --nv -e noether.sif noether run t.py", ["separate-runs"]),
    "another-verb": (TWO, "srun -n1 -N1 noether status", ["idle-nodes"]),
}  # fmt: skip


@pytest.mark.parametrize(("options", "line", "rules"), LINES.values(), ids=LINES.keys())
def test_what_is_known_of_a_line_of_noether(options: str, line: str, rules: list[str]) -> None:
    findings, _ = lint_text(f"{options}{line}\n", Path("/nowhere/job.sbatch"), KNOWN)
    assert [finding.rule for finding in findings] == rules


def test_a_configuration_is_held_against_the_ranks_of_any_job(tmp_path: Path, capsys) -> None:
    job = tmp_path / "job.sbatch"
    job.write_text("#!/bin/bash\n#SBATCH -n1 --gpus=4\ntorchrun --standalone --nproc_per_node=4 t.py\n")
    assert lint([str(job), NINE], None, read_train_line, style="sarif") == 1
    (run,) = json.loads(capsys.readouterr().out)["runs"]
    assert {result["ruleId"] for result in run["results"]} == {"NTH220"}
    assert {rule.code for rule in RULES} <= {rule["id"] for rule in run["tool"]["driver"]["rules"]}


def test_a_wrong_call_is_a_refusal_with_what_to_type(tmp_path: Path) -> None:
    (tmp_path / "my.yaml").write_text("seed: 1\n")
    with refusal("nothing-to-lint", summary="no line with #SBATCH", fix=f"noether lint JOB.sh --hp {tmp_path}/my.yaml"):
        lint([f"{tmp_path}/my.yaml"], None, read_train_line)


def test_the_list_of_rules_has_those_that_are_taught(capsys) -> None:
    assert run_lint_command(rules=True) == 0
    assert {rule.code for rule in RULES} <= {line.split()[0] for line in capsys.readouterr().out.splitlines()}

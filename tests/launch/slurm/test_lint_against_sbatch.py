"""slurm-lint refuses what a real sbatch refuses, for the same reason, and accepts what sbatch accepts."""

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from launch.slurm.conftest import Slurm
from slurm_lint.check import lint_text
from slurm_lint.programs import Asked, Site

VERSION = Asked(Site(slurm=22.05))
REFUSED = {  # id: (script or options, sbatch's words, the rule)
    "no-shebang": ("hostname\n", "does not look like a batch script", "no-shebang"),
    "dos-line-ends": ("#!/bin/bash\nhostname\r\n", "DOS line breaks", "dos-line-ends"),
    "unknown": ("--ntask-per-node=1", "unrecognized option", "unknown-option"),
    "ambiguous": ("--gpu=1", "is ambiguous", "unknown-option"),
    "one-letter-with-two-dashes": ("--D .", "unrecognized option", "unknown-option"),
    "srun-only": ("--kill-on-bad-exit=1", "unrecognized option", "unknown-option"),
    "one-dash": ("-time=10", "Invalid --time", "unknown-option"),
    "short-with-equals": ("-N=2", "not a valid node count", "unknown-option"),
    "no-value": ("-N", "requires an argument", "malformed-option"),
    "stray-word": ("-n 4 four tasks", "Invalid directive", "malformed-option"),
    "open-quote": ('--job-name="a b', "Unmatched", "malformed-option"),
    "time": ("--time=2h", "Invalid --time", "bad-value"),
    "memory": ("--mem=1.5G", "Invalid --mem", "bad-value"),
    "nodes-falling": ("--nodes=4-2", "less than minimum", "bad-value"),
    "no-tasks": ("--ntasks=0", "Invalid numeric value", "bad-value"),
    "gres-syntax": ("--gres=gpu=2", "Invalid generic resource", "bad-value"),
    "gres-type-of-digits-alone": ("--gres=gpu:3090", "not available", "bad-value"),
    "gres-type-that-begins-with-a-digit": ("--gres=gpu:2080ti", "Invalid Trackable", "bad-value"),
    "gres-sockets": ("--gres=gpu:2(S:0)", "Invalid generic resource", "bad-value"),
    "signal": ("--signal=USR1@2min", "Invalid --signal", "bad-value"),
    "array": ("--array=5-1", "Invalid job array", "bad-value"),
    "two-memories": ("--mem=4G --mem-per-cpu=1G", "mutually exclusive", "options-contradict"),
    "tasks-per-gpu-and-gpus-per-task": ("-n2 --gpus-per-task=1 --ntasks-per-gpu=1", "exclusive", "options-contradict"),
    "tasks-per-gpu-and-node": (
        "--gpus=2 --ntasks-per-gpu=1 --ntasks-per-node=2",
        "exclusive",
        "options-contradict",
    ),
    "cpus-per-gpu-and-per-task": ("--gpus=1 --cpus-per-gpu=2 --cpus-per-task=2", "exclusive", "options-contradict"),
    "gpus-not-a-multiple": ("--gpus=3 --gpus-per-task=2", "", "options-contradict"),
    "en-dash": ("\u2013\u2013nodes=2", "Invalid directive", "typographic-dash"),
}
TAKEN = (
    "-n 4 # four tasks", "--ntasks=2#two", "--part=main", "-N1-2", "--gres gpu:2", "--gres=none", "--time=1:99",
    "--time=1-0", "--time=UNLIMITED", "--mem=4GB", "--mem=0", "--comment='a b'", "--signal=B:usr1@120",
    "--exclusive=user",
    "-N2 --gpus-per-node=2 --gpus-per-task=2", "-N2 --gpus-per-task=1", "--ntasks-per-gpu=1 --gpus=2", "-n1 -N4",
    "-N2 --gpus-per-node=2 --ntasks-per-node=2",
    "--array=1,3,5-9%2", "--no-kill=off", "--mail-type=END,SOON", "--tasks-per-node=2", "--gpu-bind=closest --gpus=1",
)  # fmt: skip


OTHER_GPUS = ("--gres=gpu:2080ti:1", "--gres=gpu:a100_1g.5gb:1", "--gpus=1g.5gb:1", "--gpus=geforce")


def findings(text: str) -> set[str]:
    return {f.rule for f in lint_text(text, Path("/nowhere/job.sbatch"))[0] if f.level == "error"}


def script(text: str) -> str:
    return text if "\n" in text else f"#!/bin/bash\n#SBATCH {text}\nhostname\n"


Said = Mapping[str, tuple[int, str]]
"""The exit code and output of one of Slurm's programs, by the script or the options that it was given."""


def ask(slurm: Slurm, commands: Mapping[str, str], into: Path) -> Said:
    """Run all commands in one shell of the login host; return the exit code and output of each."""
    lines = [f"{command} >{into}/{k} 2>&1; echo $? >{into}/{k}.code" for k, command in enumerate(commands.values())]
    slurm.run("sh", "-c", "\n".join(lines))
    return {one: (int((into / f"{k}.code").read_text()), (into / f"{k}").read_text()) for k, one in enumerate(commands)}


@pytest.fixture(scope="module")
def sbatch(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Said:
    """Return sbatch's answer to each script. With --test-only it starts no job, so that no queue needs a check."""
    slurm: Slurm = request.getfixturevalue("slurm")
    folder, commands = tmp_path_factory.mktemp("scripts"), {}
    for text in (*(text for text, _, _ in REFUSED.values()), *TAKEN, *OTHER_GPUS, *UNKNOWN):
        path = folder / f"{len(commands)}.sbatch"
        path.write_text(script(text))
        commands[text] = f"sbatch --test-only <{path}"
    return ask(slurm, commands, folder)


@pytest.mark.parametrize(("text", "words", "rule"), REFUSED.values(), ids=REFUSED.keys())
def test_what_sbatch_refuses_is_an_error(sbatch: Said, text: str, words: str, rule: str) -> None:
    code, said = sbatch[text]
    assert code != 0
    assert words in said
    assert rule in findings(script(text))


@pytest.mark.parametrize("options", TAKEN)
def test_what_sbatch_takes_is_none(sbatch: Said, options: str) -> None:
    code, said = sbatch[options]
    assert code == 0, said
    assert findings(script(options)) == set()


@pytest.mark.parametrize("options", OTHER_GPUS)
def test_a_type_of_gpu_may_begin_with_a_digit(sbatch: Said, options: str) -> None:
    """sbatch accepts the syntax, and only reports that this cluster lacks such a GPU."""
    assert "node configuration is not available" in sbatch[options][1]
    assert findings(script(options)) == set()


UNKNOWN = {  # sbatch refuses these here, but another site or a further line of the script may make them valid.
    "--quotatype=auto": ("site-option", "warning"),
    "--gpus-per-task=1": ("options-contradict", "warning"),
    **dict.fromkeys(
        ("--image=docker:x", "--environment=pytorch", "--container-image=x.sqsh", "--uenv=a"), ("site-option", "advice")
    ),
}


@pytest.mark.parametrize(("options", "expected"), UNKNOWN.items())
def test_what_a_site_or_a_user_may_add_is_no_error(sbatch: Said, options: str, expected: tuple[str, str]) -> None:
    assert sbatch[options][0] != 0
    found = lint_text(script(options), Path("/nowhere/job.sbatch"))[0]
    assert [(f.rule, f.level) for f in found] == [expected]


def test_one_task_on_four_nodes_is_one_node(slurm: Slurm) -> None:
    job = slurm.submit("#!/bin/bash\n#SBATCH -n1 -N4\necho nodes=$SLURM_NNODES\n")
    slurm.wait(job)
    assert "nodes=1" in slurm.output(job)


def test_srun_of_this_version_does_not_take_the_cpus_of_the_job(slurm: Slurm) -> None:
    ask = "srun -n1 sh -c 'scontrol show step $SLURM_JOB_ID.$SLURM_STEP_ID' | grep -o ' CPUs=[0-9]*'"
    text = f"#!/bin/bash\n#SBATCH -n2 -c2\n{ask}\n"
    bare = slurm.submit(text)
    passed = slurm.submit(text.replace("srun", "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\nsrun", 1))
    for job in (bare, passed):
        slurm.wait(job)
    # If the number of CPUs is passed to srun, its task gets two CPUs. Otherwise the step gets all CPUs of the job.
    assert "CPUs=2" in slurm.output(passed)
    assert "CPUs=2" not in slurm.output(bare)
    script = "#!/bin/bash\n#SBATCH -n2 -c2\nsrun -n1 python train.py\n"
    linted, _ = lint_text(script, Path("/nowhere/job.sbatch"), VERSION)
    assert [finding.rule for finding in linted] == ["srun-cpus"]


def test_memory_of_two_kinds_that_srun_refuses_in_a_job(slurm: Slurm) -> None:
    texts = [f"#!/bin/bash\n#SBATCH -n1\nsrun {step} ./missing\n" for step in ("--mem=9", "--mem=9 --mem-per-cpu=9")]
    jobs = [slurm.submit(text.replace("./missing", "true")) for text in texts]
    refused = {text: slurm.wait(job) == "FAILED" for text, job in zip(texts, jobs, strict=True)}
    assert list(refused.values()) == [False, True]
    assert {text: bool(findings(text)) for text in texts} == refused


SRUN_TAKES = ("--cpu_bind=none", "--cpu-bind=none", "-K", "--exclusive")
SRUN_REFUSES = ("--ntask=1", "--cpus_per_task=1", "--mem_bind=none", "\u2013n1")


def test_options_of_srun(slurm: Slurm, tmp_path: Path) -> None:
    every = (*SRUN_TAKES, *SRUN_REFUSES)
    said = ask(slurm, {options: f"srun {shlex.quote(options)} true" for options in every}, tmp_path)
    assert {options for options in every if said[options][0]} == set(SRUN_REFUSES), said
    linted = {options: findings(f"#!/bin/bash\n#SBATCH -n1\nsrun {options} true\n") for options in every}
    assert {options for options in every if linted[options]} == set(SRUN_REFUSES)

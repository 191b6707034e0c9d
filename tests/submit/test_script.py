"""The job script: a change to it appears as a change to a stored script, or to a stored difference from that script."""

import json
import os
import re
import shutil
import subprocess
import sys
from difflib import unified_diff
from pathlib import Path

import pytest
from conftest import TINY

from noether.checkpoints.format import write_checkpoint
from noether.checkpoints.run_settings import load_run_config
from noether.common.errors import RequestError
from noether.config.compose import dump_config, load_config
from noether.config.sweep import override_value
from noether.jobs.job import describe_job, describe_script
from noether.jobs.script import render_script
from noether.runs.folder import RunFolder
from noether.runs.trust import MARK, mark_own
from tests.refusal import refusal
from tests.saved import META

GOLDEN = Path(__file__).with_name("golden")
GPUS = ("slurm.nodes=2", "slurm.gpus_per_node=a100:4", "trainer.effective_batch_size=64")
PLACE = ("slurm.cpus_per_task=8", "slurm.mem_gb=64", "slurm.timeout_min=240", "slurm.slurm_partition=gpu")
SCRIPTS = {
    "two-nodes": ("cars.yaml", (*GPUS, *PLACE)),
    "setup-and-account": (
        None,
        (
            *("slurm.slurm_setup=[module load cuda/12.8, 'ulimit -n 4096']", "slurm.slurm_account=cfd"),
            *("slurm.slurm_qos=long", "slurm.slurm_constraint=ib", 'slurm.nodelist="n[1-2]"', "slurm.nodes=2"),
            *("slurm.folder=/scratch/jobs/%j", "slurm.slurm_additional_parameters={mail-type: END, exclusive: true}"),
            *("slurm.slurm_signal_delay_s=120", "slurm.max_requeues=5"),
        ),
    ),
    "apptainer": (None, (*GPUS, "slurm.container=images/noether.sif", "slurm.container_mounts=[/data]")),
    "pyxis": (None, (*GPUS, 'slurm.container="ghcr.io#my/noether:1.0"', "slurm.container_mounts=['/data:/mnt']")),
    "sweep": (None, ("-m", "seed=1,2", "optimizer=adamw,lion", "slurm.slurm_array_parallelism=2")),
    "any-script": (None, (*GPUS[:2], "slurm.slurm_additional_parameters.array=0-3", "--", "train.py", "--lr", "0.1")),
    "awkward-words": (None, ('output_path="my runs/it\'s"', "slurm.slurm_setup=['echo $HOME']")),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cars.yaml").write_text("defaults: [/train, _self_]\nseed: 3\n")
    (tmp_path / "train.py").touch()
    return tmp_path


def run_script(text: str, fakes: str, folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a job script in which the functions in `fakes` replace programs."""
    text = text.replace("\nrestarts=", f"\n{fakes}restarts=", 1)
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12", **variables}
    return subprocess.run(["bash"], input=text, env=environ, capture_output=True, text=True, timeout=20, cwd=folder)


def script(hp: str | None, words: tuple[str, ...]) -> str:
    overrides = [word for word in words if word != "-m"]
    if "--" in words:
        return render_script(describe_script(words, None), program=("noether",))
    job = describe_job(["run_id=cars", *overrides], hp, multirun="-m" in words)
    return render_script(job, program=("noether",))


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_script_is_as_it_was_read_last(name: str) -> None:
    """One script is stored as a whole; for the others, only the lines that differ from it are stored."""
    written, whole = script(*SCRIPTS[name]), GOLDEN / "two-nodes.sh"
    path = whole if name == whole.stem else GOLDEN / f"{name}.diff"
    if path != whole:
        lines = whole.read_text().splitlines(), written.splitlines()
        written = "".join(f"{line}\n" for line in unified_diff(*lines, whole.name, name, n=0, lineterm=""))
    if os.environ.get("NOETHER_WRITE_GOLDEN"):
        path.write_text(written)
    assert written == path.read_text(), "if intended: NOETHER_WRITE_GOLDEN=1 pytest tests/submit"


AWKWARD = ("a b", "12", "1e3", "true", "läufe", "$(touch pwned)", 'a"b', "it's", "a\\", 'a\\"b', "-x", "a=b,c", "[x")


@pytest.mark.parametrize("sweep", [(), ("seed=1,2",)], ids=["one-run", "sweep"])
@pytest.mark.parametrize("name", AWKWARD)
def test_any_name_reaches_the_ranks_as_one_word_that_reads_back(name: str, sweep, folder: Path) -> None:
    job = describe_job([f"run_id={override_value(name)}", *sweep], None, multirun=bool(sweep))
    fakes = "srun() { printf '%s\\n' \"$@\"; }\n"
    done = run_script(render_script(job, program=("noether",)), fakes, folder, SLURM_ARRAY_TASK_ID="1")
    words = done.stdout.splitlines()
    chosen = [word for word in words[words.index("train") + 1 :] if word.startswith(("run_id=", "seed="))]
    assert load_config(chosen).run_id == (f"{name}-1" if sweep else name), done.stderr
    done = run_script(script(None, ("--", "train.py", name, "--lr")), fakes, folder)
    assert done.stdout.splitlines()[-3:] == ["train.py", name, "--lr"]
    assert not (folder / "pwned").exists()


FAKES = """\
srun() {{ echo "$@"; mkdir -p "$run/checkpoints"; {srun}; }}
scontrol() {{ echo "$*" >> scontrol.said; [ ! -e refuses ] || {{ echo "Access denied" >&2; return 1; }}; }}
"""
SAVED, AGAIN = "touch $run/checkpoints/update-1", "everything is saved in runs/cars, up to update 1; queued again"
NOTHING = "nothing is saved in runs/cars yet"
DENIED = "refused to queue the job again: Access denied"
ENDS = {
    "done": ("return 0", {}, 0, ""),
    "failed": ("return 7", {}, 7, ""),
    "saved": (f"{SAVED}; return 75", {}, 75, AGAIN),
    "saved-and-code-masked-by-kill-on-bad-exit": (f"touch $run/stopped.json; {SAVED}; return 137", {}, 75, AGAIN),
    "saved-and-slurm-refuses": (f"touch refuses; {SAVED}; return 75", {}, 75, DENIED),
    "ended-by-slurm": (f"{SAVED}; kill -TERM $$; return 75", {}, 75, "Slurm ended the job"),
    "cancelled": (f'{SAVED}; touch "$run/cancelled"; return 75', {}, 75, "cancelled; everything is saved"),
    "cancelled-before-it-saved": ('touch "$run/cancelled"; return 75', {}, 75, f"cancelled; {NOTHING}"),
    "ended-by-slurm-before-it-saved": ("kill -TERM $$; return 75", {}, 75, f"ended the job; {NOTHING}"),
    "requeued-too-often": ("return 75", {"SLURM_RESTART_COUNT": "50"}, 75, f"{NOTHING}; requeued 50 times already"),
    "the-stop-signal-before-the-ranks-could-catch-it": ("return 140", {}, 75, f"{NOTHING}; queued again"),
    "killed-while-it-started": ("return 143", {}, 143, ""),
    "an-old-mark-does-not-count": ("return 1", {"SLURM_RESTART_COUNT": "1"}, 1, ""),
}


@pytest.mark.parametrize(("srun", "variables", "code", "says"), ENDS.values(), ids=ENDS.keys())
def test_the_script_ends_as_its_ranks_did(srun, variables, code, says, folder: Path) -> None:
    (folder / "runs" / "cars").mkdir(parents=True)
    (folder / "runs" / "cars" / "stopped.json").touch()
    left = {"RANK": "3", "SLURM_STEP_ID": "7", **variables}
    done = run_script(script(None, ()), FAKES.format(srun=srun), folder, **left)
    assert done.returncode == code, done.stdout + done.stderr
    assert says in done.stdout
    asked = folder / "scontrol.said"
    assert (asked.read_text() if asked.exists() else "") == "requeue 12\n" * ("; queued" in says or "refused" in says)


ONE, ELEMENT = {}, {"SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "1"}
SCRIPT_ENDS = {
    "asks": (ONE, "return 75", 75, "requeue 12", "queued again"),
    "refused": (ONE, "touch refuses; return 75", 75, "requeue 12", "&& sbatch slurm/12.sh"),
    "element-refused": (ELEMENT, "touch refuses; return 75", 75, "requeue 11_1", "&& sbatch --array=1 slurm/11_1.sh"),
    "too-often": (ONE | {"SLURM_RESTART_COUNT": "50"}, "return 75", 75, "", "requeued 50 times already"),
    "ended-by-slurm": (ONE, "kill -TERM $$; return 75", 75, "", "Slurm ended the job"),
    "told-before-it-had-started": (ONE, "return 140", 75, "requeue 12", "queued again"),
}


@pytest.mark.parametrize(("variables", "srun", "code", "asked", "says"), SCRIPT_ENDS.values(), ids=SCRIPT_ENDS)
def test_a_job_of_a_script_is_queued_again_when_it_leaves_with_75(variables, srun, code, asked, says, folder) -> None:
    """A user's script has no run folder and saves in its own way, so only the number of attempts is limited."""
    (folder / "slurm").mkdir()
    done = run_script(script(None, ("--", "train.py")), FAKES.format(srun=srun), folder, run="no", **variables)
    assert (done.returncode, says in done.stdout) == (code, True), done.stdout + done.stderr
    said = folder / "scontrol.said"
    assert (said.read_text().strip() if said.exists() else "") == asked


STARTS = {
    "stopped-while-it-starts": (["return 140"] * 4, "12 12 12", 2),
    "stopped-by-slurm-then-while-it-starts": (["kill -TERM $$; return 143"] * 3 + ["return 140"], "12 12 12 12", 0),
    "the-first-saves": ([SAVED + "; return 75"] + ["touch $run/stopped.json; return 137"] * 4, "12 12 12 12", 3),
    "each-saves-more": (['touch "$run/checkpoints/update-0000$(date +%s%N)"; return 75'] * 5, "12 12 12 12 12", 5),
    "submitted-anew": (["return 140"] * 5, "12 12 13 13 13", 4),
}


@pytest.mark.parametrize(("sruns", "jobs", "queued"), STARTS.values(), ids=STARTS)
def test_starts_that_save_nothing_new_are_counted_whatever_ends_them(sruns, jobs, queued, folder: Path) -> None:
    """Regression: a job that was always stopped before it could write a record was requeued forever."""
    for srun, job in zip(sruns, jobs.split(), strict=False):
        said = run_script(script(None, ()), FAKES.format(srun=srun), folder, SLURM_JOB_ID=job).stdout
    asked = folder / "scontrol.said"
    assert len(asked.read_text().splitlines() if asked.exists() else []) == queued, said
    assert ("3 starts in a row saved nothing new; not queued again" in said) == (queued != 5)


def test_a_setup_that_stops_at_errors_still_requeues(folder: Path) -> None:
    (folder / "runs" / "cars").mkdir(parents=True)
    text = script(None, ("slurm.slurm_setup=['set -euo pipefail']",))
    done = run_script(text, FAKES.format(srun=ENDS["saved"][0]), folder)
    assert (done.returncode, "queued again" in done.stdout) == (75, True), done.stdout + done.stderr


PRINTED = {
    "one-run": ((), {}, "12", "sbatch runs/cars/job.sh"),
    "element-of-an-array": (("-m", "seed=1,2"), ELEMENT, "11_1", "sbatch --array=1 runs/cars-1/job.sh"),
}


@pytest.mark.parametrize(("sweep", "variables", "job", "again"), PRINTED.values(), ids=PRINTED)
def test_a_script_that_nobody_submitted_for_us_says_where_its_job_is(sweep, variables, job, again, tmp_path) -> None:
    """The script writes job.json with the name of its output; if a requeue is refused, it prints how to continue."""
    fakes = FAKES.format(srun=ENDS["saved-and-slurm-refuses"][0])
    text = script(None, sweep).replace("\nrestarts=", f"\n{fakes}restarts=", 1)
    file, output = tmp_path / "spooled", tmp_path / 'a "b" \\ c.out'
    file.write_text(text)
    environ = {"PATH": os.environ["PATH"], "SLURM_JOB_ID": "12", **variables}
    with output.open("w") as stdout:
        subprocess.run(["bash", str(file)], env=environ, stdout=stdout, stderr=stdout, timeout=20, cwd=tmp_path)
    folder = tmp_path / "runs" / ("cars-1" if sweep else "cars")
    assert json.loads((folder / "job.json").read_text()) == {"job": job, "output": str(output)}
    assert f"to continue: cd {tmp_path} && {again}\n" in output.read_text()
    assert (folder / "job.sh").read_text() == text


def test_a_mount_with_a_blank_is_one_word_of_srun(folder: Path) -> None:
    words = ('slurm.container="a#b:1"', 'slurm.container_mounts=["/da ta:/mnt"]')
    done = run_script(script(None, words), "srun() { printf '%s\\n' \"$@\"; }\n", folder)
    assert f"--container-mounts={folder}:{folder},/da ta:/mnt" in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("settings", "binds"),
    [
        pytest.param(("output_path=runs",), [], id="all-in-the-working-directory"),
        pytest.param(("output_path={away}/new/runs",), ["{away}"], id="output-elsewhere-and-not-made-yet"),
        pytest.param(("dataset_root={away}", "output_path={away}/runs"), ["{away}"], id="data-and-output-together"),
        pytest.param(("dataset_root={away}", "slurm.container_mounts=[{away}]"), ["{away}"], id="mounted-already"),
        pytest.param(("--", "{away}/own.py"), ["{away}"], id="a-script-elsewhere"),
    ],
)
def test_what_the_run_needs_outside_is_mounted(settings, binds, folder: Path, tmp_path_factory) -> None:
    away = tmp_path_factory.mktemp("away")
    (away / "own.py").touch()
    words = [setting.format(away=away) for setting in settings]
    text = script(None, ("slurm.container=noether.sif", *words))
    assert re.findall(r"--bind (\S+)", text) == [bind.format(away=away) for bind in binds]


@pytest.mark.skipif(shutil.which("sbatch") is None, reason="without Slurm's commands nothing is submitted")
def test_an_image_that_is_not_there_never_reaches_the_queue(noether, folder: Path) -> None:
    done = noether("submit", "--hp", str(TINY), "slurm.container=nowhere.sif", f"output_path={folder}/runs", code=2)
    assert "nowhere.sif" in done.err


def test_ranks_of_another_launcher_are_not_inherited(folder: Path) -> None:
    inherited = ["RANK", "MASTER_PORT", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_CPU_BIND"]
    inherited.append("OMPI_COMM_WORLD_RANK")
    done = run_script(script(None, ()), "srun() { env; }\n", folder, **dict.fromkeys(inherited, "3"))
    left = {line.partition("=")[0] for line in done.stdout.splitlines()}
    assert left.isdisjoint(inherited)
    assert "SLURM_JOB_ID" in left


THREE_NODES, BATCH = ("slurm.nodes=3", "slurm.tasks_per_node=1"), "trainer.effective_batch_size"
FOUR_DEVICES = ('devices="0,1,2,3"', "slurm.tasks_per_node=1", "accelerator=gpu")
OWN = ("--", "train.py")
REFUSED = {
    "tasks-contradict-gpus": (["slurm.gpus_per_node=4", "slurm.tasks_per_node=2"], "slurm.tasks_per_node=4"),
    "gpus-without-a-number": (["slurm.gpus_per_node=a100"], "write 4, or with a type a100:4"),
    "gpus-as-gres-has-them": (["slurm.gpus_per_node=gpu:4"], "write 4, or with a type a100:4"),
    "batch-not-shared-by-the-job": ([*THREE_NODES, f"{BATCH}=8"], f"{BATCH}=6      or {BATCH}=9"),
    "devices-the-job-does-not-ask-for": (["slurm.gpus_per_node=2", *FOUR_DEVICES], "devices"),
    "more-names-than-nodes": (['slurm.nodelist="n[1-3]"'], "slurm.nodes=3"),
    "no-time-to-save": (["slurm.timeout_min=1"], "slurm.timeout_min=2"),
    "unreliable-lead": (["slurm.slurm_signal_delay_s=30"], "a number of at least 60"),
    "a-place-for-each-run": (["-m", "slurm.nodes=1,2"], "submit these runs one by one"),
    "a-sweep-without-m": (["seed=1,2"], "one value"),
    "one-wrong-run-of-a-sweep": (["-m", "seed=1,two"], "seed cannot be two"),
    "a-sweep-from-another-run": (["-m", "seed=1,2", "resume=latest"], "run_id=NAME resume=auto"),
    "resume-from-nowhere": (["resume=/nowhere"], "nothing to resume"),
    "weights-from-nowhere": (["initial_weights=/nowhere"], "leave initial_weights out"),
    "an-array-of-one-run": (["slurm.slurm_additional_parameters.array=0-3"], "noether submit -m KEY=VALUE,VALUE"),
    "devices-a-script-does-not-get": ([*FOUR_DEVICES, "slurm.gpus_per_node=2", *OWN], "devices"),
    "a-script-that-is-not-there": (["--", "nowhere.py"], "noether run train.py"),
    "a-setting-that-no-script-has": (["seed=1", *OWN], "noether run train.py seed=1"),
    "a-script-on-nodes-of-no-scheduler": (["nodes=2", *OWN], "slurm.nodes=2"),
}


@pytest.mark.parametrize(("words", "way_out"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_run_is_refused_before_the_queue(words, way_out) -> None:
    overrides = [word for word in words if word != "-m"]
    with pytest.raises(RequestError, match=re.escape(way_out)):
        describe_script(words, None) if "--" in words else describe_job(overrides, None, multirun="-m" in words)


def test_a_checkpoint_of_a_run_is_refused_by_its_name_in_runs_too(folder: Path) -> None:
    meta = META | {"config": load_config([], str(TINY)).model_dump(mode="json")}
    saved = write_checkpoint(folder / "runs/cars/checkpoints", 2, {}, meta).path
    (folder / "runs/cars/config.yaml").write_text("seed: 0\n")
    for named in (f"cars/checkpoints/{saved.name}", saved):
        with refusal("job-resumes-checkpoint"):
            describe_job([f"resume={named}"], str(TINY))


def test_a_run_that_goes_on_in_a_job_asks_for_what_it_had_but_runs_no_strangers_lines(folder: Path) -> None:
    words = ["run_id=cars", "slurm.nodes=2", "slurm.timeout_min=240", "slurm.slurm_setup=[umask 2]"]
    job = describe_job(words, str(TINY))
    config, run = load_config([*job.shared, "run_id=cars"], job.hp), folder / "runs/cars"
    write_checkpoint(run / "checkpoints", 2, {}, META | {"config": config.model_dump(mode="json")})
    (run / "config.yaml").write_text(dump_config(config))
    with refusal("untrusted-run", seen="slurm.slurm_setup"):
        describe_job([f"resume={run}"], None)
    mark_own(RunFolder(run), config)
    assert describe_job([f"resume={run}"], None).slurm == job.slurm
    (run / MARK).unlink()
    assert load_run_config([f"resume={run}"], None).slurm == job.slurm  # Outside a job, nothing runs them.


def test_a_run_that_exists_needs_a_word_on_how_to_go_on(folder: Path) -> None:
    run = folder / "runs" / "cars"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("seed: 1\n")
    (run / "result.json").write_text("{}")  # Without a result, the run could have failed to start.
    with refusal("run-exists"):
        describe_job(["run_id=cars"], None)
    assert describe_job(["run_id=cars", "resume=auto"], None).runs[0].folder == Path("runs/cars")


def test_submit_without_slurm_prints_or_refuses(noether, folder: Path) -> None:
    """Through a pipe, the script goes to the next command; if printed inside an image, its job runs in that image."""
    nowhere = {"PATH": "/nonexistent", "APPTAINER_CONTAINER": "/images/noether.sif"}
    done = noether("submit", "--hp", str(TINY), "run_id=x", f"slurm.folder={folder}/jobs/%j", **nowhere, code=0)
    assert done.out.startswith("#!/bin/bash\n")
    assert "apptainer exec /images/noether.sif" in done.out
    assert (folder / "jobs").is_dir()
    done = noether("submit", "run", f"slurm.folder={folder}", "-m", "json.tool", "-x", **nowhere, code=0)
    assert "apptainer exec /images/noether.sif \\\n    noether run -m json.tool -x\n" in done.out


def test_a_dry_run_shows_plan_and_script_and_leaves_nothing(noether, folder: Path) -> None:
    words = ("--hp", str(TINY), "devices=null", "slurm.nodes=2", "slurm.tasks_per_node=2", f"output_path={folder}/runs")
    done = noether("submit", "--dry-run", *words, code=0)
    assert "2 nodes × 2 tasks: 4 ranks on cpu" in done.out
    assert "4 samples per update = 4 ranks × 1" in done.out
    assert "#!/bin/bash" in done.out
    done = noether("submit", "run", "--dry-run", *words[3:5], "train.py", "-x", code=0, cwd=folder)
    assert "2 nodes × 2 tasks: 4 ranks on cpu, the cluster's time limit\nscript train.py -x\n" in done.out
    assert sorted(path.name for path in folder.iterdir()) == ["cars.yaml", "train.py"]


def test_weights_that_all_runs_of_a_sweep_begin_with_are_read_once(folder: Path, monkeypatch) -> None:
    read: list[str] = []
    monkeypatch.setattr(sys.modules["noether.jobs.job"], "named_weights", read.append)
    describe_job(["seed=1,2,3", "initial_weights=w.safetensors"], None, multirun=True)
    assert read == ["w.safetensors"]

"""The commands as a user types them: help, mistakes, plans and dry runs."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY, TINY
from processes import lay, run_to_end

from noether.cli.entry import dispatch
from noether.common.dotted_path import code_granted, load_object
from noether.common.processes import EndedBySignal, leave_when_told, stops_handled
from noether.config.compose import DEFAULT, load_config, settings_with_origins
from noether.config.overrides import TYPED
from noether.config.section import flat
from noether.physics.cases.mesh_blocks import read_blocks

HELP = {
    "a-command-names-the-help-of-its-settings": (
        ["submit", "--help"],
        ["slurm.nodes=2", "noether help top-level", "noether help trainer"],
        ["effective_batch_size"],
    ),
    "the-top-level": (
        ["help", "top-level"],
        ["dataset_root", "accelerator ", "+experiment/ellipsoid", "convnet", "[whole number or null, default null]"],
        ["trainer.", "slurm.", "model."],
    ),
    "a-section": (["help", "model"], ["model.encoder_depth", "model.kind=transolver", "model=OPTION: ab_upt"], []),
    "a-section-of-one-kind": (["help", "slurm"], ["slurm.mem_gb"], ["kind="]),
    "a-section-of-training": (["help", "trainer"], ["trainer.max_epochs", "trainer=OPTION: cases"], []),
}


@pytest.mark.parametrize(("words", "there", "absent"), HELP.values(), ids=HELP.keys())
def test_help_names_the_settings(words, there, absent, noether) -> None:
    done = noether(*words, code=0)
    for text in there:
        assert text in done.out
    for text in absent:
        assert text not in done.out


TERMINALS = {
    "locale": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    "streams": {"PYTHONIOENCODING": "ascii"},
    "sizes": {"COLUMNS": "9" * 5000, "LINES": "²"},
}


@pytest.mark.parametrize("variables", TERMINALS.values(), ids=TERMINALS.keys())
def test_an_odd_terminal_ends_nothing(variables, noether, tmp_path: Path) -> None:
    words = ("train", "--hp", str(TINY), "--dry-run", "accelerator=cpu", "devices=2", f"output_path={tmp_path}")
    done = noether(*words, **variables)
    assert (done.code, "per rank" in done.out) == (0, True), done.out + done.err


LIGHT = {
    "torch hydra pydantic numpy yaml": ["--help", "--version", "plan --help", "data", "train -- --help", "trian",
                                        "evaluate"],
    "torch hydra": ["train --reest"],
    "torch": ["lint packages/slurm-lint/tests/clean/apptainer.sbatch", "plan", "status --output-path /tmp",
              "submit --print slurm.nodes=2 slurm.gpus_per_node=2 slurm.folder=/tmp", "submit slurm.node=2",
              "cancel runs/none", "train acelerator=cpu",
              "train devices=2 accelerator=cpu trainer.effective_batch_size=63"],
}  # fmt: skip
"""Command lines, by the packages that they must not import."""


def test_answers_that_need_no_torch_never_import_it(environ) -> None:
    """All lines run in one process; those without settings must not import the modules that read settings."""
    script = (
        "import sys\nfrom noether.cli import main\n"
        f"for packages, line in [(packages, line) for packages, lines in {LIGHT!r}.items() for line in lines]:\n"
        "    try:\n        main(line.split())\n    except SystemExit:\n        pass\n"
        "    if found := {*packages.split()} & {*sys.modules}:\n        sys.exit(f'{line}: {found}')\n"
        "print('all were asked')"
    )
    done = run_to_end([sys.executable, "-c", script], environ, limit_s=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("all were asked\n")


MISTAKES = {
    "data-folder-without-the-data": (["dataset_root={tmp}"], "no train.safetensors"),
    "unwritable-output": (["output_path={tmp}/file/runs"], "cannot write to"),
    "existing-run": (["output_path={tmp}", "run_id=old"], "fix       resume=auto"),
    "resume-auto-without-a-name": (["resume=auto"], "run_id=NAME"),
    "checkpoint-outside-a-run": (["resume={tmp}/loose"], "is a checkpoint outside a run"),
    "a-name-of-300-letters": (["dataset_root={tmp}/" + "x" * 300], "a name is too long for the file system"),
    "not-a-yaml-name": (["--hp", "{tmp}/old/settings.yml"], "settings.yml does not end in .yaml"),
    "reset-and-resumed": (["--reset", "run_id=cars", "resume=auto"], "fix       --reset resume=null"),
    "reset-without-a-name": (["--reset"], "fix       --reset run_id=NAME"),
    "reset-of-a-sweep": (["--reset", "-m", "seed=1,2", "run_id=cars"], "do not work with a sweep"),
    "another-local-rank": (["--local-rank=1"], "fix       leave --local-rank=1 out"),
    "nothing-to-serve": (["--tb", "tracker.tensorboard=false"], "fix       --tb tracker.tensorboard=true"),
}


@pytest.mark.parametrize(("arguments", "way_out"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_end_with_2_and_the_line_to_change(arguments, way_out, noether, tmp_path: Path) -> None:
    lay(tmp_path, {"file": "", "old/config.yaml": "", "old/settings.yml": "seed: 1\n"})
    lay(tmp_path, {"old/result.json": "{}", "loose/meta.json": "{}"})
    filled = [argument.format(tmp=tmp_path) for argument in arguments]
    base = [] if "--hp" in filled else ["--hp", str(TINY)]
    if not any(argument.startswith("output_path") for argument in filled):
        filled.append(f"output_path={tmp_path}/runs")
    done = noether("train", *base, *filled, code=2)
    assert "Traceback" not in done.out + done.err
    assert way_out in done.err
    assert "  expected  " in done.err or "  fix  " in done.err
    assert not list(tmp_path.glob("runs/*")), "a refused command must leave no run folder"


FORBIDDEN = {
    "output": ["train", "output_path={closed}/runs"],
    "run-to-resume": ["train", "resume={closed}/a"],
    "settings": ["plan", "--hp", "{closed}/my.yaml"],
    "run-to-report": ["report", "{closed}/a"],
    "runs": ["status", "--output-path", "{closed}/runs"],
}


@pytest.mark.parametrize("arguments", FORBIDDEN.values(), ids=FORBIDDEN.keys())
def test_what_this_user_may_not_enter_is_named_without_a_traceback(arguments, environ, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0)
    # Unless root gives up its capabilities, it may enter any folder.
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    words = [argument.format(closed=closed) for argument in arguments]
    done = run_to_end([*plain, sys.executable, "-m", "noether", *words], environ)
    assert (done.returncode, "Traceback" not in done.stderr) == (2, True), done.stderr
    assert "Permission denied" in done.stderr
    assert str(closed) in done.stderr


def test_plan_for_a_machine_that_is_not_this_one(noether) -> None:
    batch = ("trainer.effective_batch_size=64", "trainer.max_batch_size=8")
    plan = json.loads(noether("plan", "--json", "--visible-devices", "4,5,6,7", *batch).out)
    assert (plan["launcher"], plan["world_size"], plan["node_rank"], plan["restarts"]) == ("local", 4, 0, 0)
    assert plan["batch"] == {"effective": 64, "per_rank": 16, "micro": 8, "accumulation_steps": 2}
    assert plan["workers"][3] == {"rank": 3, "local_rank": 3, "node_rank": 0, "device": "cuda:3"}
    assert plan["endpoint"]["host"] == "127.0.0.1"
    assert set(plan["reasons"]) >= {"launcher", "world_size", "nodes", "workers", "endpoint", "batch"}


def test_train_gives_one_line_of_reasons_on_one_machine_and_plan_all(noether, tmp_path: Path) -> None:
    words = ("--hp", str(TINY), "accelerator=cpu", f"output_path={tmp_path}")
    lines = [noether(*verb, *words).out.splitlines() for verb in (("train", "--dry-run"), ("plan",))]
    reasons = [[line for line in said if line.startswith(("because", "endpoint", "restarts"))] for said in lines]
    assert [len(found) for found in reasons] == [1, 3]


def test_plan_of_a_sweep_has_each_run(noether, tmp_path: Path) -> None:
    words = ("-m", "trainer.effective_batch_size=4,8", "accelerator=cpu", "devices=1", "run_id=swept")
    plans = json.loads(noether("plan", "--json", *words, cwd=tmp_path).out)
    assert [plan["batch"]["effective"] for plan in plans] == [4, 8]
    text = noether("plan", *words, cwd=tmp_path).out
    for size in (4, 8):
        assert f"runs/swept-effective_batch_size{size} " in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_dry_run_says_what_it_takes_and_leaves_nothing(devices, noether, tmp_path: Path) -> None:
    words = ("--dry-run", "--json", f"output_path={tmp_path}/runs", f"devices={devices}")
    summary = json.loads(noether("train", "--hp", str(TINY), *words, code=0).out)
    assert summary["world_size"] == int(devices)
    assert summary["parameters"] == summary["model"]["parameters"] > 1000
    assert summary["memory_mib"] > 50
    assert 0 < summary["seconds_per_update"] < 60
    assert summary["metrics"]["surface_pressure/relative_l2"] > 0
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["train", "plan", "noether"])
def test_the_entry_point_reads_its_own_name(name, environ, tmp_path: Path) -> None:
    """In the image, each subcommand is also a program: a link to entrypoint.py with the subcommand's name."""
    program = tmp_path / name
    program.symlink_to(REPOSITORY / "entrypoint.py")
    words = {"train": ["--dry-run", "acelerator=1"], "plan": ["--json"], "noether": ["plan", "--json"]}[name]
    done = run_to_end([sys.executable, str(program), *words], environ)
    if name == "train":
        assert (done.returncode, "did you mean 'accelerator'?" in done.stderr) == (2, True), done.stderr
    else:
        assert json.loads(done.stdout)["world_size"] >= 1


IN_A_CLASS = "import signal\nclass Name:\n def __set_name__(*own): signal.raise_signal({})\nclass Own: own = Name()"
IN_CODE_OF_OTHERS = {
    "a-module": ("own.py", "import signal\nsignal.raise_signal(12)", 12),
    "a-class": ("own.py", IN_A_CLASS.format(12), 12),
    "a-class-and-ctrl-c": ("own.py", IN_A_CLASS.format(2), 2),
    "meshio": ("part.inp", "*NODE\n1,0,0,0\n2,1,0,0\n3,0,1,0\n*ELEMENT, TYPE=S3\n1,1,2,3\n", 12),
    "vtk": ("part.vtu", "<", 12),
}


@pytest.mark.parametrize(("name", "text", "number"), IN_CODE_OF_OTHERS.values(), ids=IN_CODE_OF_OTHERS)
def test_a_signal_that_comes_in_the_code_of_others_leaves_as_itself(name, text, number, tmp_path, monkeypatch) -> None:
    """Regression: the error said that a module cannot be imported, or that a mesh cannot be read."""
    lay(tmp_path, {name: text})
    monkeypatch.chdir(tmp_path)
    for reader in ("meshio.read", "noether.physics.cases.mesh_blocks._opened_by_vtk"):
        monkeypatch.setattr(reader, lambda *given: signal.raise_signal(number))
    with stops_handled(signal.default_int_handler), code_granted(["own.Model"]):
        leave_when_told()
        with pytest.raises((EndedBySignal, KeyboardInterrupt)) as left:
            load_object("own.Model", "model.kind") if name == "own.py" else read_blocks(Path(name))
    assert getattr(left.value, "code", 130) == 128 + number


@pytest.mark.slow
def test_a_command_that_used_torch_leaves_without_waiting_for_its_threads() -> None:
    """Threads of an open process group could abort the interpreter or keep it from exiting with the right code."""
    thread = "threading.Thread(target=time.sleep, args=(60,)).start()"
    imports = "import threading, time, torch\nfrom noether.cli.entry import _leave\n"
    code = f"{imports}{thread}; print('said', end=''); _leave(2)"
    done = run_to_end([sys.executable, "-c", code], os.environ, limit_s=30)
    assert (done.returncode, done.stdout) == (2, "said")


@pytest.mark.parametrize("what", ["stdout-closed", "working-directory-removed"])
def test_a_command_that_was_started_without_what_it_stands_on(what: str, tmp_path: Path) -> None:
    noether = f"exec {sys.executable} -m noether"
    gone = tmp_path / "gone"
    gone.mkdir()
    line = f"{noether} --version >&-" if what == "stdout-closed" else f"cd {gone}; rmdir {gone}; {noether} --version"
    done = run_to_end(["sh", "-c", line], os.environ | {"PYTHONPATH": str(REPOSITORY)})
    assert "Traceback" not in done.stderr
    assert done.returncode == (0 if what == "stdout-closed" else 2), done.stderr


def test_each_setting_has_its_value_and_where_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "my.yaml"
    file.write_text("seed: 3\ntrainer: {log_every: 7 updates}\n")
    words = ["model=upt", "trainer.max_updates=9", "+experiment/ellipsoid=quick"]
    found = {setting.name: setting for setting in settings_with_origins(words, file)}
    values = dict(flat(load_config(words, file).model_dump(mode="json")))
    assert {name: one.value for name, one in found.items()} == values
    origins = {name: one.origin for name, one in found.items()}
    assert origins["trainer.max_updates"] == TYPED
    assert origins["seed"] == origins["trainer.log_every"] == str(file)
    assert origins["model.dim"] == "configs/model/upt.yaml"
    assert origins["trainer.evaluate_every"] == "configs/experiment/ellipsoid/quick.yaml"
    assert origins["trainer.precision"] == "configs/trainer/default.yaml"
    assert origins["trainer.tf32"] == origins["master_port"] == DEFAULT


def test_the_lines_can_be_typed_and_the_json_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(["settings", "seed=5"]) == 0
    lines = [line.split("   ")[0].strip() for line in capsys.readouterr().out.splitlines()]
    assert "seed=5" in lines
    assert "'schedule.warmup=5 %'" in lines
    assert dispatch(["settings", "seed=5", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["seed"] == {"value": 5, "origin": "command line"}


ONE_SETTING = {
    "trainer.max_epochs": "whole number or null, default null",
    "accelerator": "auto | gpu | cpu | mps, default auto",
    "schedule.warmup": "length or null, default null",
    "optimizer.betas": "list of numbers, default [0.9,0.999]",
}


@pytest.mark.parametrize(("name", "says"), ONE_SETTING.items())
def test_the_help_of_one_setting_has_its_type_and_default(name: str, says: str, capsys) -> None:
    assert dispatch(["help", name]) == 0
    first, _, *uses = capsys.readouterr().out.splitlines()
    assert first == f"{name}: {says}"
    assert [line for line in uses if "configs/" in line] == uses
    assert bool(uses) == (name in ("trainer.max_epochs", "schedule.warmup")), "only settings of files"

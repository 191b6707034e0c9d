"""What a newcomer types wrongly, the fix that each answer shows, and that fix typed.

`train` goes as far as its plan, a model's commands as far as the process that would load the model, and `report` as far
as its page.
"""

import re
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import lay

from noether.checkpoints.own_settings import load_run_config
from noether.cli.binding import bind
from noether.cli.entry import dispatch
from noether.common.errors import RequestError
from noether.config.explain import OTHER_NAMES, SECTIONS, settings
from noether.config.sweep import expand_sweep

POINTS = "dataset.points_per_update"
TYPED = {
    "train model=upt,ab_upt": "-m model=upt,ab_upt",
    "train devices=0,1": 'devices=\\"0,1\\"',
    "train resume=true": "resume=latest",
    "train +experiment=ellipsoid": "+experiment/ellipsoid=full",
    "train +experiment/ellipsoid=fast": "leave +experiment/ellipsoid=fast out",
    "train +experiment/elipsoid=quick": "+experiment/ellipsoid=quick",
    "train optimizer.betas=[.9,.95,.99]": "optimizer.betas='[0.9,0.95]'",
    "train resume=car": "resume=runs/cars",
    "train resume=runs/cars/checkpoints": "resume=runs/cars",
    "train resume=": "noether status",
    "cancel runs/car": "noether status",
    "train trainer.save_every=1": "'trainer.checkpoint_every=1 update'",
    "train trainer.max_epochs:3": "trainer.max_epochs=3",
    "train seed=1 my.yaml": "--hp my.yaml",
    "train points_per_update.surface=64": "dataset.points_per_update.surface=64",
    "train dataset.pionts_per_update.surfce=64": (f"{POINTS}.surfce=64", f"{POINTS}.surface=64"),
    "train save_every=0": ("'trainer.checkpoint_every=0 updates'", "leave trainer.checkpoint_every out"),
    "train hidden_dim=100": ("model.dim=100", "model.dim=102"),
    "train lr_scheduler.layers.a=1": "leave lr_scheduler.layers.a out",
    "train slurm.gpus_per_node=2 tasks_per_node=3": ("slurm.tasks_per_node=3", "slurm.tasks_per_node=2"),
    "train =3": "leave =3 out",
    "train ~trainer": "trainer=default",
    "train ~nothing": "leave ~nothing out",
    "train ~trainer.max_epochs": "trainer.max_epochs=60",
    "train accelerator=mps": "accelerator=auto",
    "predict runs/cars --mesh cars.stl": "--mesh car.stl",
    "predict runs/cars --mesh car.stl --scale mm": "--scale 0.001",
    "predict runs/cars --mesh car.stl --scale yd": "--scale 0.9144",
    "predict runs/cars --mesh car.stl --chunk 0": "leave --chunk out",
    "predict runs/cars --mesh car.stl --interval often": "--interval 90",
    "train dataset.points_per_update.surface=99999": "leave dataset.points_per_update.surface out",
    "evaluate cras": "runs/cars",
    "evaluate runs/cars --split eval": "--split test",
    "lint jobs.sh": "noether lint job.sh",
    "lint job.sh --slurm new": "--slurm 23.02",
    "data inspect nix": "ls .",
    "train trainer.accelerator=cpu": "accelerator=cpu",
    "train report_to=wandb": "tracker=wandb",
    "train tracker=wand": "tracker=wandb",
    "train tracker.services=[wnadb]": "leave tracker.services out",
    "train tracker.services=wandb": "tracker.services='[wandb]'",
    "train accumulate_grad_batches=2": "trainer.max_batch_size=1",
    "train trainer.strategy=ddp": "leave trainer.strategy out",
    "train model.num_heads=4": "model.heads=4",
    "train optimizer.name=adamw": "optimizer.kind=adamw",
    "train optimizer=torch.optim.Adam": "leave optimizer=torch.optim.Adam out",
    "train scheduler=cosine": "schedule=cosine",
    'train schedule.warmup="110 %"': "'schedule.warmup=10 %'",
    'train schedule.warmup="5 fortnights"': "'schedule.warmup=10 updates'",
    "train -m seed=1,1": "noether train seed=1",
    "train -m seed=1,2,1": "seed=1,2",
    "train hydra.run.dir=x": "output_path=x",
    "train initial_weights=nowhere": "leave initial_weights out",
    "train devices=two": "devices=2",
    "train devices=99": "devices=2",
    "train optimizer.weight_decay=inf": "optimizer.weight_decay=0.0",
    "train schedule.kind=[1,2]": "schedule.kind=constant",
    "train trainer.max_epochs=3.5": "leave trainer.max_epochs out",
    "train trainer.max_epochs 3": "trainer.max_epochs=3",
    "train trainer.max_epochs": "leave trainer.max_epochs out",
    "train trainer.max_epochs = 3": "trainer.max_epochs=3",
    "train trainer/max_epochs=3": "trainer.max_epochs=3",
    "train --trainer.max-epoch 3": "trainer.max_epochs=3",
    "train -": "leave - out",
    "plan -j 2": "leave 2 out",
    "train trainer.compile=maybe": "trainer.compile=false",
    "train nodes=2": "noether train --nodes 2 --node-rank 0 --master-addr HOST",
    "train run_id=": "leave run_id out",
    "train what\\ is\\ this": "leave 'what is this' out",
    "train dataset=mnist": "+experiment/mnist=convnet",
    "train optimizer.learning_rate=1e-3,1e-4": "-m optimizer.learning_rate=1e-3,1e-4",
    "train optimizer=adamw optimizer.momentum=0.9": "leave optimizer.momentum out",
    "train optimizer=sgd optimizer.momentum=0 optimizer.nesterov=true": "leave optimizer.nesterov out",
    'train trainer.log_every="5 %"': "'trainer.log_every=5 epochs'",
    "train trainer.max_batch_size=0": "leave trainer.max_batch_size out",
    "train slurm.partition=gpu": "slurm.slurm_partition=gpu",
    "train slurm.container_mounts=/data,/b:/mnt": "slurm.container_mounts='[/data,/b:/mnt]'",
    "train slurm.timeout_min=1": "slurm.timeout_min=2",
    "train slurm.gpus_per_node=a100:4 slurm.tasks_per_node=2": "slurm.tasks_per_node=4",
    "train slurm.slurm_additional_parametrs.nodes=2": ("slurm.slurm_additional_parameters.nodes=2", "slurm.nodes=2"),
    "train slurm.slurm_additional_parametrs.spread=1": "slurm.slurm_additional_parameters.spread=1",
    "train task.scalars.lift_coefficient.pressure=presure": "leave task.scalars.lift_coefficient.pressure out",
    "train lr_scheduler.warmup_steps=10": "'schedule.warmup=10 updates'",
    "watch nix": "noether status",
    "help trainer.max_epoch": "noether help trainer.max_epochs",
    "help lr": "noether help optimizer.learning_rate",
    "logs runs/cars --rank x": "--rank 0",
    "submit -m seed=1": "leave -m out",
    'train "run_id=it\'s"': "run_id='\"it'\"'\"'s\"'",
    "init runs": "noether init runs_2",
    "train model=ab_upt_small model.supernodes=2000": "model.supernodes=512",
    "train task.fields.surface_pressure.unti=Pa": "task.fields.surface_pressure.unit=Pa",
    "train model.kind=typed_package.own.Nett": "model.kind=typed_package.own.Network",
    "train model.kind=typed_package.own": "model.kind=typed_package.own.Network",
    "train model.kind=typed_package.own.Watch": "model.kind=typed_package.own.Network",
    "train trainer.callbacks=[typed_package.own.Wtach]": "trainer.callbacks='[typed_package.own.Watch]'",
    "train schedule.kind=typed_package.own.flatt": "schedule.kind=typed_package.own.flat",
}
"""The fix of each line, as far as it is to be typed: without what stands beside it as a remark; where both
name and value are wrong, one fix after the other."""

TO_BE_FILLED_IN = {
    "report": "noether report runs/NAME",
    "predict runs/cars": "noether predict runs/cars --mesh FILE",
    "sensitivity runs/cars": "noether sensitivity runs/cars --mesh FILE",
    "predict runs/cars --mesh sub/nofile.stl": "--mesh FILE",
    "data prepare": "noether data prepare CASES OUT --map cases.yaml",
    "data prepare a": "noether data prepare a a-prepared --map cases.yaml",
    "train accelerator=cuda": "accelerator=gpu",
    "train model.kind=nowhere.Model": "start from the directory that holds nowhere, or change model.kind=",
}
"""Fixes with a word in capitals, and those that need a file of the user's own, or a GPU."""


OWN = """
from torch import nn
from noether.training.callbacks import Callback
class Network(nn.Module):
    pass
class Watch(Callback):
    def begin(self, run):
        pass
def flat(peak, updates):
    return lambda update: peak
"""


def run_line(words: Sequence[str]) -> None:
    """Runs a command line; `train` as far as its plan, which refuses the same. RequestError: it is refused."""
    if "--help" in words or words[0] == "ls":
        return
    if words and words[0] in ("train", "submit"):
        command = bind(words)
        hp = command.flags.get("hp")
        if command.flags.get("multirun"):
            for run in expand_sweep(command.words):
                load_run_config(run, hp if isinstance(hp, str) else None)
            return
        flags = [word for name, value in command.flags.items() if name == "hp" for word in (f"--{name}", str(value))]
        words = ["plan", *flags, *command.words]
    dispatch(list(words))


def refused(words: Sequence[str]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        run_line(words)
    return caught.value


def shown_fix(error: RequestError) -> str:
    """Returns what is to be typed: the first fix, without the remark that follows six spaces."""
    return re.split(r" {6}|\n", error.fix)[0]


def with_fix(words: Sequence[str], error: RequestError) -> list[str]:
    """Returns the command line after a user did what the first fix says."""
    fix = shown_fix(error)
    leave = re.fullmatch(r"leave (.+) out", fix)
    if leave:
        gone = shlex.split(leave[1])
        return _without(words, lambda word: word in gone or _key(word) == gone[0].lstrip("~+"))
    typed = shlex.split(fix)
    if typed[0] == "noether":
        return typed[1:]
    named = error.summary.split(" is not a run")[0]
    if len(typed) == 1 and named in words:  # Another path in its place.
        return [typed[0] if word == named else word for word in words]
    if typed[0] == "ls":
        return typed
    if typed[0] == "--hp":  # Another settings file in the place of the one that stands first.
        words = [word for word in words if not word.endswith((".yaml", ".yml"))]
    seen = [error.seen.split(" (")[0], *shlex.split(error.seen.replace("'", "").split(" (")[0])]
    seen = [part for word in seen for part in (word, *word.split(", ")[:1], *word.split(" and "))]
    keys = {_key(word) for word in typed if not word.startswith("-")}
    keys |= {_key(word) for word in seen if "=" in word}
    kept = _without(words, lambda word: _key(word) in keys or word in seen or word == typed[0].split("=")[0])
    return [*kept, *typed]


def _without(words: Sequence[str], is_gone) -> list[str]:
    """The words but those; with a flag goes its value."""
    kept, queue = [], list(words[1:])
    while queue:
        word = queue.pop(0)
        if not is_gone(word):
            kept.append(word)
        elif word.startswith("--") and "=" not in word and queue and "=" not in queue[0] and queue[0][0] != "-":
            queue.pop(0)
    return [words[0], *kept]


def _key(word: str) -> str:
    key = word.lstrip("+~").partition("=")[0].partition(":")[0]
    return key.removeprefix("--").replace("-", "_") if key.startswith("--") else key


@pytest.fixture(scope="module")
def trained(train_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_in(tmp_path_factory.mktemp("typed"), "cars").path


@pytest.fixture
def workspace(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the runs `cars` and `one`, a settings file, a script, a mesh and a text; nothing is started."""
    for name in ("cars", "one"):
        shutil.copytree(trained, tmp_path / "runs" / name)
    files = {"my.yaml": "seed: 1\n", "README.md": "hello\n", "car.stl": "solid\n", "typed_package/own.py": OWN}
    lay(tmp_path, {**files, "job.sh": "#!/bin/bash\n#SBATCH --ntasks=2\nsrun noether train\n"})
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for place in ("training.evaluate_command", "physics.export.command", "physics.predict.shape_request"):
        monkeypatch.setattr(f"noether.{place}.run_here", lambda *request: 0)
    monkeypatch.setattr("noether.runs.report.page.write_report", lambda folder: folder.report)
    return tmp_path


@pytest.mark.parametrize("line", TYPED)
def test_the_fix_that_is_shown_works_when_it_is_typed(line: str, workspace: Path) -> None:
    words, fixes = shlex.split(line), TYPED[line]
    for fix in (fixes,) if isinstance(fixes, str) else fixes:
        error = refused(words)
        assert shown_fix(error) == fix
        assert "put should" not in str(error), "a sentence of pydantic's"
        words = with_fix(words, error)
    run_line(words)


@pytest.mark.parametrize("line", TO_BE_FILLED_IN)
def test_what_has_to_be_filled_in_is_shown(line: str, workspace: Path) -> None:
    assert shown_fix(refused(shlex.split(line))) == TO_BE_FILLED_IN[line]


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_what_other_programs_call_a_setting_is_one(name: str) -> None:
    meant = OTHER_NAMES[name].setting
    assert meant in settings() or meant in SECTIONS
    assert name not in settings(), "the setting of that name could not be typed wrongly"

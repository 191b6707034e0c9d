"""`plan` refuses every request that `train` refuses, with the same message, and starts nothing."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from conftest import TINY
from processes import lay

from noether.training.preflight import refuse_without_compiler
from tests.refusal import refusal_with

OWN_CODE = {
    "wrong-option": (["model.kind=own.Model", "model.widht=3"], "has no option 'widht'"),
    "no-class": (["model.kind=own.Modell"], "module own has no Modell"),
    "no-module": (["model.kind=nowhere.Model"], "no module named nowhere"),
    "module-of-its-own-that-is-not-there": (
        ["model.kind=needs.Model"],
        "needs cannot be imported: ModuleNotFoundError",
    ),
    "raises-at-import": (["model.kind=raises.Model"], "raises cannot be imported: ZeroDivisionError"),
    "no-python": (["task.kind=no_python.Task"], "no_python cannot be imported: SyntaxError"),
    "leaves-at-import": (["dataset.kind=leaves.Data"], "leaves cannot be imported: SystemExit: 3"),
    "no-forward": (["model.kind=own.Nothing"], "Nothing has no forward"),
    "forward-takes-too-much": (["model.kind=own.Two"], "Two.forward does not accept the arguments of a run"),
    "forward-takes-too-little": (["model.kind=own.Model", "model.input=[a, b]"], "Model.forward does not accept"),
    "data-without-its-option": (["dataset.kind=own.Data"], "needs count"),
    "data-without-root": (["dataset.kind=own.NoRoot"], "does not take 'root'"),
    "data-without-length": (["dataset.kind=own.Endless", "dataset.count=2"], "Endless has no __len__"),
    "stream-in-epochs": (["dataset.kind=own.Stream", "trainer.checkpoint_every=1 epoch"], "no length has no epochs"),
    "no-model": (["model.kind=own.Loss"], "is not a model"),
    "not-a-task": (["task.kind=own.Model"], "is not a task"),
    "no-loss": (["task.kind=own.NoLoss"], "NoLoss has no loss"),
    "loss-takes-too-little": (["task.kind=own.LossOfOne"], "LossOfOne.loss does not accept the arguments of a run"),
    "another-method-of-a-task": (["task.kind=own.Prepares"], "Prepares.prepare does not accept the arguments of a run"),
    "callback": (["trainer.callbacks=[own.Loss]"], "no run can call own.Loss"),
    "method-of-a-callback": (["trainer.callbacks=[own.Notes]"], "Notes.begin does not accept the arguments of a run"),
    "optimiser": (["optimizer.kind=own.Loss"], "is not an optimizer"),
    "schedule": (["schedule.kind=own.Data"], "does not take 'peak'"),
}
REFUSED = OWN_CODE | {
    "no-data": (["dataset=shapenet_car"], "ShapeNet-Car needs dataset_root"),
    "no-such-folder": (["dataset=shapenet_car", "dataset_root=nowhere"], "does not hold prepared ShapeNet-Car data"),
    "a-run-of-that-name": (["run_id=there"], "exists already"),
    "a-folder-that-cannot-be-written": (["output_path=/sys/runs"], "cannot write to"),
    "no-compiler": (["trainer.compile=true"], "needs a C++ compiler"),
    "nothing-to-resume": (["resume=latest"], "no run to resume"),
    "weights-that-are-not-there": (["initial_weights=typo"], "holds no weights"),
    "of-two-the-compiler-before-a-run-is-read": (["run_id=there", "trainer.compile=true"], "needs a C++ compiler"),
    "of-two-the-compiler": (["trainer.compile=true", "initial_weights=typo"], "needs a C++ compiler"),
}
OWN = """
from noether.core.tasks.base import Task
from noether.training.callbacks import Callback
from torch import nn
class Nothing(nn.Module): pass
class Model(nn.Module):
    def __init__(self, width=3):
        super().__init__()
    def forward(self, batch): pass
class Two(Model):
    def forward(self, batch, more): pass
class Reads(Model):
    def __init__(self, layout): pass
class Data:
    def __init__(self, split, root, count): pass
    def __len__(self): return 1
    def __getitem__(self, index): pass
class NoRoot(Data):
    def __init__(self, split): pass
class Endless(Data):
    __len__ = None
class Stream:
    def __init__(self, split, root): pass
    def __iter__(self): pass
class NoLoss(Task): pass
class Loss(Task):
    def loss(self, predictions, batch): pass
class LossOfOne(Task):
    def loss(self, predictions): pass
class Prepares(Loss):
    def prepare(self): pass
class Notes(Callback):
    def begin(self): pass
"""
FILES = {
    "own.py": OWN, "raises.py": "import threading, time\nthreading.Thread(target=time.sleep, args=[99]).start()\n1 / 0",
    "needs.py": "import nobody_has", "no_python.py": "def (",
    "leaves.py": "import sys\nsys.exit(3)", "runs/there/config.yaml": "seed: 0\n", "runs/there/result.json": "{}",
    "bin/sbatch": "#!/bin/sh\necho 1\n", "bin/squeue": "#!/bin/sh\n",
}  # fmt: skip


def test_a_model_that_asks_for_the_layout_is_planned(noether, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    noether("plan", "devices=1", "accelerator=cpu", "model.kind=own.Reads", cwd=tmp_path, code=0)


@pytest.mark.parametrize(("words", "summary"), REFUSED.values(), ids=REFUSED)
def test_plan_train_and_submit_refuse_alike(words: list[str], summary: str, noether, environ, tmp_path: Path) -> None:
    """Each command refuses before it makes data or a folder. A fake Slurm would accept the job of submit."""
    lay(tmp_path, FILES)
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    more = {"CXX": "no-such-compiler"} if "trainer.compile=true" in words else {}
    file = () if "dataset=shapenet_car" in words else ("--hp", str(TINY))
    said = [noether(verb, *file, "devices=1", *words, cwd=tmp_path, **more) for verb in ("plan", "train")]
    if len(words) == 1 or "trainer.compile=true" not in words:  # submit would report the other mistake.
        more["PATH"] = f"{tmp_path}/bin:{environ['PATH']}"
        said.append(noether("submit", *file, "devices=1", *words, cwd=tmp_path, **more))
    for done in said:
        assert (done.code, summary in done.err) == (2, True), done.out + done.err
        assert "Traceback" not in done.err
    assert len({done.err.splitlines()[0] for done in said}) == 1
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["there"]
    assert not (tmp_path / "slurm").exists()


@pytest.mark.parametrize("mistake", ["no-class", "raises-at-import", "no-loss"])
def test_several_ranks_refuse_own_code_before_they_start(mistake: str, noether, tmp_path: Path) -> None:
    lay(tmp_path, FILES)
    words, summary = OWN_CODE[mistake]
    done = noether("train", "--hp", str(TINY), "devices=2", *words, cwd=tmp_path)
    assert (done.code, summary in done.err, "Traceback" in done.err) == (2, True, False), done.err
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["there"]


def test_nodes_that_a_job_sets_up_may_have_modules_that_this_machine_has_not(noether, environ, tmp_path) -> None:
    lay(tmp_path, FILES)
    for program in (tmp_path / "bin").iterdir():
        program.chmod(0o755)
    words = ("--hp", str(TINY), "model.kind=nowhere.Model", "slurm.slurm_setup=[umask 2]")
    noether("submit", *words, cwd=tmp_path, code=0, PATH=f"{tmp_path}/bin:{environ['PATH']}")


def test_another_machine_s_plan_asks_nothing_of_this_one(noether, tmp_path: Path) -> None:
    noether("plan", "dataset=shapenet_car", "dataset_root=/nowhere", "--visible-devices", "0", cwd=tmp_path, code=0)


@pytest.mark.parametrize(
    ("kind", "environ", "engine", "there", "refused"),
    [
        ("cpu", {}, "", {"g++"}, ""),
        ("cpu", {}, "", {"gcc"}, "C++"),
        ("cpu", {"CXX": "icpx"}, "", {"icpx"}, ""),
        ("cpu", {"CXX": "icpx"}, "", {"g++"}, "CXX=icpx"),
        ("cuda", {}, "", {"gcc"}, ""),
        ("cuda", {}, "", {"g++"}, "needs a C compiler"),
        ("cpu", {}, "apptainer", set(), "FROM this one with g++"),
    ],
)
def test_a_missing_compiler_is_refused(kind, environ, engine, there, refused: str) -> None:
    with refusal_with(refused, "trainer.compile=false") if refused else nullcontext():
        refuse_without_compiler(kind, environ, engine, lambda name: name if name in there else None)

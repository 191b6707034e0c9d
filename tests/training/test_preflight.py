"""`plan` refuses what `train` refuses, with the same words, and nothing is started."""

from contextlib import nullcontext
from pathlib import Path

import pytest
from conftest import TINY
from processes import lay

from noether.training.preflight import refuse_without_compiler
from tests.refusal import refusal_with

REFUSED = {
    "own-model-with-a-wrong-option": (["model.kind=own.Model", "model.widht=3"], "has no option 'widht'"),
    "own-model-that-is-not-there": (["model.kind=own.Modell"], "module own has no Modell"),
    "own-module-that-is-not-there": (["model.kind=nowhere.Model"], "no module named nowhere"),
    "own-data-without-its-option": (["dataset.kind=own.Data"], "needs count"),
    "not-a-task": (["task.kind=own.Model"], "is not a task"),
    "no-data": (["dataset=shapenet_car"], "ShapeNet-Car needs dataset_root"),
    "no-such-folder": (["dataset=shapenet_car", "dataset_root=nowhere"], "does not hold prepared ShapeNet-Car"),
    "a-run-of-that-name": (["run_id=there"], "exists already"),
    "a-folder-that-cannot-be-written": (["output_path=/sys/runs"], "cannot write to"),
    "no-compiler": (["trainer.compile=true"], "needs a C++ compiler"),
    "nothing-to-resume": (["resume=latest"], "no run to resume"),
    "weights-that-are-not-there": (["initial_weights=typo"], "holds no weights"),
    "of-two-the-compiler-before-a-run-is-read": (["run_id=there", "trainer.compile=true"], "needs a C++ compiler"),
    "of-two-the-compiler": (["trainer.compile=true", "initial_weights=typo"], "needs a C++ compiler"),
}
OWN = """
from torch import nn
class Model(nn.Module):
    def __init__(self, width=3):
        super().__init__()
class Reads(Model):
    def __init__(self, layout): pass
class Data:
    def __init__(self, split, root, count): pass
"""


def test_a_model_that_asks_for_the_layout_is_planned(noether, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    noether("plan", "devices=1", "accelerator=cpu", "model.kind=own.Reads", cwd=tmp_path, code=0)


@pytest.mark.parametrize(("words", "summary"), REFUSED.values(), ids=REFUSED)
def test_plan_and_train_refuse_alike(words: list[str], summary: str, noether, tmp_path: Path) -> None:
    lay(tmp_path, {"own.py": OWN, "runs/there/config.yaml": "seed: 0\n", "runs/there/result.json": "{}"})
    more = {"CXX": "no-such-compiler"} if "trainer.compile=true" in words else {}
    file = () if "dataset=shapenet_car" in words else ("--hp", str(TINY))
    said = [noether(verb, *file, "devices=1", *words, cwd=tmp_path, **more) for verb in ("plan", "train")]
    for done in said:
        assert (done.code, summary in done.err) == (2, True), done.out + done.err
        assert "Traceback" not in done.err
    plan, train = (done.err.splitlines()[0] for done in said)
    assert plan == train


def test_another_machine_s_plan_asks_nothing_of_this_one(noether, tmp_path: Path) -> None:
    noether("plan", "dataset=shapenet_car", "dataset_root=/nowhere", "--visible-devices", "0", cwd=tmp_path, code=0)


@pytest.mark.parametrize(
    ("kind", "environ", "there", "refused"),
    [
        ("cpu", {}, {"g++"}, ""),
        ("cpu", {}, {"gcc"}, "C++"),
        ("cpu", {"CXX": "icpx"}, {"icpx"}, ""),
        ("cpu", {"CXX": "icpx"}, {"g++"}, "CXX=icpx"),
        ("cuda", {}, {"gcc"}, ""),
        ("cuda", {}, {"g++"}, "needs a C compiler"),
    ],
)
def test_a_missing_compiler_is_refused(kind: str, environ: dict[str, str], there: set[str], refused: str) -> None:
    def which(name: str) -> str | None:
        return f"/usr/bin/{name}" if name in there else None

    with refusal_with(refused, "trainer.compile=false") if refused else nullcontext():
        refuse_without_compiler(kind, environ, "", which)


def test_an_image_says_which_image_has_a_compiler() -> None:
    with refusal_with("FROM this one with g++"):
        refuse_without_compiler("cpu", {}, "apptainer", lambda name: None)

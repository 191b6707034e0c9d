"""Callbacks named by dotted path: the run calls them, a callback may end the run, an invalid callback is refused."""

import json
import re
from pathlib import Path

import pytest
from conftest import TINY

from noether.checkpoints.format import newest_update
from noether.common.dotted_path import code_granted
from noether.training.callbacks import callback_classes
from tests.refusal import refusal

OWN = """
import json

from noether.training.callbacks import Callback


class Notes(Callback):
    '''Writes down what it was called with, and ends the run at its second evaluation.'''

    def __init__(self):
        self.lines, self.evaluations = [], 0

    def begin(self, run):
        self.lines.append(["begin", run.state.progress.updates])

    def after_update(self, run, metrics):
        self.lines.append(["update", run.state.progress.updates, metrics.loss.item() > 0])

    def after_evaluation(self, run, metrics):
        self.evaluations += 1
        self.lines.append(["evaluation", "loss" in metrics])
        with open(f"notes-{run.group.rank}.json", "w") as file:
            json.dump(self.lines, file)
        return self.evaluations == 2


class NotDerived:
    def after_update(self, run, metrics):
        pass


class WithArguments(Callback):
    def __init__(self, every):
        self.every = every

    def after_update(self, run, metrics):
        pass


class MisspeltMethod(Callback):
    def after_updates(self, run, metrics):
        pass


an_object = Notes()
"""
WRONG = {
    "not-derived": ("own_notes.NotDerived", "callback-unusable", "NotDerived"),
    "an-object": ("own_notes.an_object", "callback-unusable", "Notes object"),
    "constructor-needs-arguments": ("own_notes.WithArguments", "callback-unusable", "every"),
    "misspelt-method": ("own_notes.MisspeltMethod", "callback-unusable", "methods after_updates"),
    "no-such-class": ("own_notes.Note", "no-such-attribute", "own_notes.Note"),
    "no-dotted-path": ("Notes", "not-a-dotted-path", "trainer.callbacks=Notes"),
}


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_notes.py").write_text(OWN)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(__import__("sys").modules, "own_notes", raising=False)


@pytest.mark.parametrize(("path", "code", "seen"), WRONG.values(), ids=WRONG)
def test_what_a_run_cannot_call_is_refused(path: str, code: str, seen: str) -> None:
    with code_granted([path]), refusal(code, seen=seen):
        callback_classes([path])


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_callback_is_called_and_ends_the_run(devices: str, noether, tmp_path: Path) -> None:
    words = ["--hp", str(TINY), "output_path=runs", "run_id=own", f"devices={devices}", "trainer.max_updates=40"]
    words += ["trainer.evaluate_every=2 updates", "trainer.callbacks=[own_notes.Notes]"]
    done = noether("train", *words, cwd=tmp_path, code=0)
    assert re.findall("the run ends after update .*", done.out) == ["the run ends after update 4: Notes requested it"]
    assert newest_update(tmp_path / "runs/own/checkpoints") == 4
    lines = [json.loads((tmp_path / f"notes-{rank}.json").read_text()) for rank in range(int(devices))]
    made = [["update", 1, True], ["update", 2, True], ["evaluation", True], ["update", 3, True]]
    assert lines[0] == [["begin", 0], *made, ["update", 4, True], ["evaluation", True]]
    assert not any(line[1] for other in lines[1:] for line in other if line[0] == "evaluation")
    again = noether("train", "resume=runs/own", cwd=tmp_path)
    assert (again.code, "already complete" in again.out) == (0, True), again.out

"""A run trains with a user's own data set, model and task, named by dotted paths, in the user's working directory."""

import json
from pathlib import Path

import pytest
from conftest import REPOSITORY
from safetensors.torch import load_file

OWN = (
    (REPOSITORY / "tests" / "faults" / "own" / "slow_lines.py").read_text()
    + """

class Linear(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 1)

    def forward(self, batch):
        return {"y": self.layer(batch["x"])}
"""
)

CONFIG = """
defaults: [/optimizer: adamw, _self_]
dataset: {kind: own.Lines, count: 64, validation_fraction: 0.25}
model: {kind: own.Linear, width: 4}
task: {kind: own.Regression}
optimizer: {learning_rate: 0.1, weight_decay: 0.0}
schedule: {kind: cosine}
accelerator: cpu
trainer: {effective_batch_size: 8, max_epochs: 40, log_every: 1 epoch}
"""


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["1", "2"])
def test_own_components_train_evaluate_and_report(devices: str, noether, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "lines.yaml").write_text(CONFIG)
    noether("train", "lines.yaml", "run_id=lines", f"devices={devices}", cwd=tmp_path, code=0)
    result = json.loads((tmp_path / "runs/lines/result.json").read_text())
    assert result["metrics"]["mae"] < 0.05
    assert result["samples"] == 64
    report = tmp_path / "runs/lines/report.html"
    report.unlink()  # As if the run was killed before its report.
    for text, is_said in ((OWN, False), (f"{OWN}\n# of another day\n", True)):
        (tmp_path / "own.py").write_text(text)
        done = noether("train", "lines.yaml", "run_id=lines", "resume=auto", f"devices={devices}", cwd=tmp_path, code=0)
        assert report.is_file()
        said = " ".join(f"{done.out} {done.err}".split())
        assert ("the source code of own has changed" in said) == is_said, said
    again = noether("evaluate", "runs/lines", "--split", "validation", "--json", cwd=tmp_path, code=0)
    assert json.loads(again.out)["samples"] == 16
    (tmp_path / "own.py").write_text(
        OWN.replace("layer = nn.Linear(width, 1)", "layer = nn.Linear(width, 1, bias=False)")
    )
    changed = noether("evaluate", "runs/lines", cwd=tmp_path)
    assert "fix       Linear of own as it was at that time" in changed.err


NORMALISED = """

class Normalised(Linear):
    def __init__(self, width):
        super().__init__(width)
        self.norm = nn.BatchNorm1d(width)

    def forward(self, batch):
        return {"y": self.layer(self.norm(batch["x"]))}
"""


@pytest.mark.slow
def test_running_statistics_are_rank_0_s_in_every_evaluation_and_no_trial_moves_them(noether, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN + NORMALISED)
    (tmp_path / "own.yaml").write_text(CONFIG.replace("own.Linear", "own.Normalised"))
    words = ["output_path=runs", "run_id=norm", "devices=2", "trainer.max_batch_size=auto", "trainer.max_epochs=2"]
    refused = noether("train", "--hp", "own.yaml", *words, cwd=tmp_path, code=2)
    assert "[samples-compared-in-parts]" in refused.err
    words += ["run_id=by-rank", "trainer.across_ranks=per_rank"]
    noether("train", "--hp", "own.yaml", *words, cwd=tmp_path, code=0)
    rows = [json.loads(line) for line in (tmp_path / "runs" / "by-rank" / "metrics.jsonl").read_text().splitlines()]
    last = [row for row in rows if row["kind"] == "evaluation" and row["weights"] == "raw"][-1]
    checked = ("--split", "validation", "--weights", "raw", "--checkpoint", "latest", "--json")
    again = noether("evaluate", "runs/by-rank", *checked, cwd=tmp_path, code=0)
    assert json.loads(again.out)["metrics"]["mae"] == pytest.approx(last["metrics"]["mae"], rel=1e-6)
    newest = sorted((tmp_path / "runs" / "by-rank" / "checkpoints").iterdir())[-1]
    assert int(load_file(newest / "model.safetensors")["norm.num_batches_tracked"]) == last["update"]


PARTLY_USED = """

class Spare(Linear):
    def __init__(self, width):
        super().__init__(width)
        self.spare = nn.Linear(width, 1)


class SometimesSpare(Spare):
    calls = 0

    def forward(self, batch):
        self.calls += self.training
        return {"y": self.layer(batch["x"]) + (self.spare(batch["x"]) if self.calls == 2 else 0)}
"""
REFUSED = {
    "parameters-without-gradient": ("Spare", "'trainer.freeze=[spare.weight,spare.bias]'"),
    "gradients-of-some-updates": ("SometimesSpare", "devices=1"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("code", "model", "fix"), [(code, *case) for code, case in REFUSED.items()], ids=REFUSED)
def test_ranks_that_cannot_share_gradients_say_so_and_the_fix_helps(code, model, fix, noether, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN + PARTLY_USED)
    (tmp_path / "own.yaml").write_text(CONFIG.replace("own.Linear", f"own.{model}"))
    words = ["train", "--hp", "own.yaml", "devices=2", "trainer.max_epochs=1"]
    words += ["trainer.max_batch_size=2"] if model == "Spare" else []
    done = noether(*words, cwd=tmp_path)
    assert (done.code, f"[{code}]" in done.err, "Traceback" in done.err) == (2, True, False), done.err
    assert f"fix       {fix} " in done.err
    assert noether(*words, fix.strip("'"), "run_id=fixed", cwd=tmp_path).code == 0

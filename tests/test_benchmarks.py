"""The benchmarks run, the programs that they compare do the same work, and all results are shown."""

import importlib
import json
import os
import sys

import pytest
import torch
from conftest import REPOSITORY
from processes import run_to_end
from sharing import in_every_push

from noether.core.models.build import build_model

BENCHMARKS = REPOSITORY / "benchmarks"


@pytest.fixture(autouse=True)
def benchmarks_path(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))


def run(*words, **environ):
    own = {**os.environ, "PYTHONPATH": os.pathsep.join((str(REPOSITORY), str(BENCHMARKS))), **environ}
    return run_to_end([sys.executable, *words], own, limit_s=300)


SHAPE = {"dim": 24, "heads": 2}
POOLED = {**SHAPE, "supernodes": 9, "radius": 200.0, "max_neighbours": 5}
OPTIONS = {
    "upt": {**POOLED, "encoder_depth": 2, "decoder_depth": 2},
    "ab_upt": {**POOLED, "geometry_depth": 1, "physics_depth": 2, "branch_depth": 1},
    "transformer": {**SHAPE, "depth": 2},
    "transolver": {**SHAPE, "depth": 2, "slices": 7, "mlp_ratio": 2},
    "transolver of more slices than channels": {**SHAPE, "depth": 2, "slices": 17, "mlp_ratio": 2},
}


@pytest.mark.parametrize("kind", OPTIONS)
def test_the_straightforward_models_predict_and_learn_the_same_from_the_same_weights(kind):
    plain_models = importlib.import_module("plain_models")
    made = torch.Generator().manual_seed(0)
    clouds = ("geometry", "surface", "volume")
    batch = {f"{name}_points": 1000 * torch.rand(2, 30, 3, generator=made) for name in clouds}
    batch |= {f"{name}_normals": torch.randn(2, 30, 3, generator=made) for name in ("surface", "volume")}
    batch["volume_sdf"] = torch.rand(2, 30, generator=made)
    torch.manual_seed(0)
    kind, options = kind.partition(" ")[0], OPTIONS[kind]
    ours = build_model(kind, **options)
    for parameter in ours.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    plain = plain_models.plain_copy(ours, kind, options)
    gradients = []
    for model in (ours, plain):
        fields = model(batch)
        sum(fields[name].square().mean() for name in sorted(fields)).backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, field in ours(batch).items():
        torch.testing.assert_close(field, plain(batch)[name], rtol=1e-3, atol=1e-3)
    for name, gradient in gradients[0].items():
        scale = gradient.abs().max().clamp(min=1e-6)
        torch.testing.assert_close(gradient / scale, gradients[1][name] / scale, rtol=0, atol=2e-3)


def test_without_a_gpu_it_is_said_and_the_exit_code_is_2():
    done = run("benchmarks/gpu.py", CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, "device_count() = 0" in done.stderr) == (2, True), done.stderr
    assert "--device cpu --tiny" in done.stderr


@pytest.mark.nightly
def test_the_gpu_benchmark_runs_its_own_code_on_a_cpu(tmp_path):
    out, page = tmp_path / "gpu.json", tmp_path / "gpu.md"
    words = ["--device", "cpu", "--tiny", "--no-compile", "--ranks", "1", "2", "--updates", "1", "--rounds", "1"]
    words += ["--models", "ab_upt", "transolver_all_points"]
    done = run("benchmarks/gpu.py", *words, "--json", str(out), "--page", str(page))
    assert done.returncode == 0, done.stderr
    assert page.read_text().count("| ab_upt | bf16 | eager | ") == 2
    assert "no GPU" in page.read_text().splitlines()[0]
    found = json.loads(out.read_text())
    assert found["machine"]["torch"] == torch.__version__
    cases = [case for ranks in ("1", "2") for case in found["cases"][ranks]["cases"]]
    assert len(cases) == 2 * 2 * 2
    assert all(case["flops"] > 0 and case["rates"][0] > 0 and case["ceiling"] > 0 for case in cases)
    assert any("2 rank(s), ab_upt, bf16: samples/s" in row["what"] for row in found["rows"])


FEW = ("dataset.train_shapes=20", "dataset.test_shapes=2", "trainer.effective_batch_size=2")


OPTIMIZERS = ["optimizers.py", "{tmp}", "--models", "upt_small", "--seeds", "1", "--updates", "2", "--rounds", "1"]
CONDITIONING = ["conditioning.py", "--updates", "4", "--seeds", "1", "task.parameters={car: {}}", *FEW]
TO_THE_END = {
    "clock": (["clock.py", "--rounds", "1"], "calls an update"),
    "growth": (["growth.py", "2"], '"noticed": '),
    "store": (["store.py", "20000", "512"], "memory "),
    "commands": (["commands.py", "--rounds", "1", "--against", "."], "plan --help: ratio"),
    "conditioning": (CONDITIONING, "seed 0, token, "),
    # No checkpoint may be skipped, or the benchmark would measure a loop without checkpoints.
    "checkpoint": (["checkpoint.py", "{tmp}", "--millions", "1", "--rounds", "2"], "seconds lost to noether"),
    "optimizers": ([*OPTIMIZERS, "--settings", *FEW], "upt_small: error at equal"),
    "models": (["models.py", "--updates", "2", *FEW], "| Transolver | "),
}


@pytest.mark.parametrize(("words", "said"), in_every_push(TO_THE_END, "clock", "growth", "store", "commands"))
def test_a_benchmark_runs_to_its_end(words, said, tmp_path):
    own = [f"output_path={tmp_path}"] if "=" in words[-1] and "{tmp}" not in words else []
    words = [word.format(tmp=tmp_path) if word == "{tmp}" else word for word in words]
    done = run(f"benchmarks/{words[0]}", *words[1:], *own, OMP_NUM_THREADS="1", TMPDIR=str(tmp_path))
    assert (done.returncode, said in done.stdout, "skipped" in done.stdout) == (0, True, False), done.stderr


def test_a_benchmark_that_fails_leaves_the_others_results(tmp_path, monkeypatch, capfd):
    bench = importlib.import_module("bench")
    monkeypatch.setitem(bench.SHORT, "broken", (60, ["clock.py", "--no-such-option"]))
    monkeypatch.setitem(bench.SHORT, "slow", (1, ["plan.py", "--rounds", "50"]))
    monkeypatch.setitem(bench.SHORT, "plan", (120, ["plan.py", "--rounds", "1", "--ranks", "64"]))
    monkeypatch.setattr(sys, "argv", ["bench.py", "broken", "slow", "plan", "--out", str(tmp_path)])
    with pytest.raises(SystemExit) as ended:
        bench.main()
    assert str(ended.value) == "failed: broken, slow"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]
    said = capfd.readouterr().out
    assert "no end after 1 s" in said
    assert "plan at 64 ranks" in said


def test_every_short_form_is_a_benchmark_that_says_what_it_does():
    bench = importlib.import_module("bench")
    named = run("benchmarks/bench.py", "--list").stdout.split()
    assert named == list(bench.SHORT)
    for _, (script, *_) in bench.SHORT.values():
        assert (BENCHMARKS / script).read_text().startswith('"""')


def rows(*pairs):
    record = importlib.import_module("record")
    return [record.row(what, [median * 0.9, median, median * 1.1], goal) for what, median, goal in pairs]


def test_charts_and_table_show_losses_and_are_the_same_twice(tmp_path):
    charts = importlib.import_module("charts")
    results, images, page = tmp_path / "bench", tmp_path / "images", tmp_path / "performance.md"
    results.mkdir(), images.mkdir()
    about = {"date": "2026-01-01", "cores": 2, "processor": "P", "torch": "2", "python": "3", "load": 0.5}
    said = "1 rank: updates a second of noether / "
    found = rows((f"{said}raw", 1.2, 1.0), (f"{said}peer", 0.7, 0.85), ("1 rank: ms", 3.0, None))
    (results / "loop.json").write_text(json.dumps({"machine": about, "rows": found}))
    page.write_text(f"before\n{charts.BEGIN}\nold\n{charts.END}\nafter\n")
    charts.draw(results, images, page)
    text, drawn = page.read_text(), (images / "performance-loop.svg").read_bytes()
    rows_with_goals = (results / "table.md").read_text()
    assert "old" not in text
    assert text.startswith("before")
    assert text.endswith("after\n")
    assert "![Updates a second" in text
    assert "| 0.700 (0.630 to 0.770) | ≥ 0.85, **missed** |" in rows_with_goals
    assert "1 rank: ms" not in text + rows_with_goals
    charts.draw(results, images, page)
    assert (page.read_text(), (images / "performance-loop.svg").read_bytes()) == (text, drawn)
    assert (results / "table.md").read_text() == rows_with_goals
    with pytest.raises(SystemExit):
        charts.draw(tmp_path / "none", images, page)
    assert page.read_text() == text

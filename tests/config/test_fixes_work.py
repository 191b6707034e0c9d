"""Every fix of a refused configuration is applied, and the error is gone."""

import re
import shlex
from pathlib import Path

import pytest

from noether.config.compose import load_config
from noether.errors import RequestError

MISTAKES = {
    "experiment": ["+experiment/ellipsoid=fast"],
    "experiment-group": ["+experiment/elipsoid=quick"],
    "group-in-capitals": ["model=UPT"],
    "group": ["model=upp"],
    "kind": ["model.kind=utp"],
    "kind-of-the-optimizer": ["optimizer.kind=adam"],
    "accelerator-cuda": ["accelerator=cuda"],
    "precision-by-torch's-name": ["trainer.precision=bfloat16"],
    "learning-rate-by-torch's-name": ["optimizer.lr=0.001"],
    "batch-size": ["trainer.batch_size=16"],
    "epochs": ["trainer.epochs=3"],
    "key": ["acelerator=gpu"],
    "nested-key": ["trainer.max_epoch=3"],
    "section": ["trainr.max_epochs=3"],
    "key-without-a-likeness": ["trainer.xyzzy=1"],
    "wrong-type": ["trainer.effective_batch_size=many"],
    "no-value-by-default": ["slurm.timeout_min=soon"],
    "out-of-range": ["trainer.ema_decay=1.5"],
    "negative-seed": ["seed=-1"],
    "two-lengths": ["trainer.max_epochs=3", "trainer.max_updates=5"],
    "no-length": ["~trainer.max_epochs"],
    "interval-without-unit": ["trainer.log_every=5"],
    "interval-of-another-unit": ["trainer.log_every='5 fortnights'"],
    "interval-in-percent": ["trainer.log_every='5 %'"],
    "several-values": ["devices=0,1"],
    "a-folder-for-a-list": ["slurm.container_mounts=/data"],
    "folders-for-a-list": ["slurm.container_mounts=/data,/b:/mnt"],
    "one-number-for-two": ["optimizer.betas=0.9"],
    "nothing-to-delete": ["~nothing"],
    "a-quote-in-a-name": ["run_id=it's"],
    "not-an-override": ["what is this"],
    "tasks-against-gpus": ["slurm.gpus_per_node=a100:4", "slurm.tasks_per_node=2"],
    "no-sample-at-once": ["trainer.max_batch_size=0"],
    "more-points-than-there-are": ["dataset.points_per_update.surface=99999"],
    "more-geometry-than-there-is": ["dataset.geometry_points=99999"],
    "heads": ["model.dim=100", "model.heads=3"],
    "heads-of-transolver": ["model=transolver", "model.heads=7"],
    "supernodes": ["model.supernodes=2000"],
    "option-of-another-model": ["model=transformer", "model.radius=9"],
    "run-id-is-a-path": ["run_id=a/b"],
    "port": ["master_port=70000"],
    "a-group-given-a-number": ["model=5"],
    "parts-of-two-problems": ["dataset=mnist"],
    "model-of-another-problem": ["model=convnet"],
    "time-limit": ["slurm.timeout_min=1"],
    "sbatch-option-that-has-a-key": ["slurm.slurm_additional_parameters.nodes=2"],
    "sbatch-option-of-gpus": ["slurm.slurm_additional_parameters.gres=gpu:2"],
    "sbatch-option-that-is-set": ["slurm.slurm_additional_parameters.open-mode=truncate"],
    "sbatch-options-that-exclude-each-other": ["slurm.mem_gb=4", "slurm.slurm_additional_parameters.mem-per-cpu=2G"],
    "momentum": ["optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"],
    "a-shape-of-a-scalar": ["task.scalars.lift_coefficient.pressure=presure"],
    "switch": ["trainer.compile=maybe"],
}
BY_HAND = {"a-shape-of-a-scalar"}
"""Fixes that name what to change and not to what: they must name the key."""


def applied(overrides: list[str], error: RequestError) -> list[str]:
    """The overrides after a user did what the first fix says: its remark in brackets and its alternatives left out."""
    fix = re.split(r" {6}|\nand ", error.fix)[0]
    leave = re.match(r"leave (.+) out$", fix)
    if leave:
        gone = shlex.split(leave[1])[0]
        return [word for word in overrides if word != gone and key(word) != gone.lstrip("~")]
    words = shlex.split(fix)
    keys = {key(word) for word in words}
    wrong = error.seen.split(" (")[0].split(", ")[0].split(" and ")
    return [word for word in overrides if key(word) not in keys and word not in wrong] + words


def key(word: str) -> str:
    return word.lstrip("+~").partition("=")[0]


@pytest.mark.parametrize("name", MISTAKES)
def test_the_fix_is_applied_and_the_error_is_gone(name: str) -> None:
    overrides = MISTAKES[name]
    with pytest.raises(RequestError) as caught:
        load_config(overrides)
    error = caught.value
    assert error.fix, str(error)
    if name in BY_HAND:
        assert key(overrides[0]) in error.fix
        return
    load_config(applied(overrides, error))


FILES = {
    "a-group-s-option-in-a-file-without-defaults": ("model: upt\nseed: 3\n", None),
    "a-group-s-option-in-a-file-with-defaults": (
        "defaults: [/train, _self_]\nmodel: upt\n",
        "defaults: [/train, override /model: upt, _self_]\n",
    ),
    "a-number-for-a-name": ("run_id: 7\n", 'run_id: "7"\n'),
    "broken-yaml": ("seed: [1\n", "seed: 1\n"),
}


@pytest.mark.parametrize(("content", "mended"), FILES.values(), ids=FILES)
def test_files_are_read_or_their_fix_works(content: str, mended: str | None, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(content)
    if mended is None:
        assert load_config((), path).model.dim == 192
        return
    with pytest.raises(RequestError) as caught:
        load_config((), path)
    fix = caught.value.fix
    assert "override /model: upt" in fix or mended.strip() in fix or f"{path}:2" in fix or f"{path}:1" in fix, fix
    path.write_text(mended)
    load_config((), path)


NEW_KINDS = {
    "model": (["model.kind=my.Model", "model.width=3"], lambda c: c.model.options(), {"width": 3}),
    "model-in-any-order": (["model.width=3", "+model.kind=my.Model"], lambda c: c.model.options(), {"width": 3}),
    "model-with-its-group": (["model=transformer", "model.kind=my.Model"], lambda c: c.model.options(), {}),
    "dataset": (
        ["dataset.kind=my.Data", "dataset.points_per_update.surface=5"],
        lambda c: (c.dataset.options(), c.dataset.points_per_update),
        ({}, {"surface": 5}),
    ),
    "task": (["task.kind=my.Task"], lambda c: c.task.options(), {}),
    "known": (["model.kind=transformer"], lambda c: (c.model.dim, c.model.depth), (192, 12)),
    "the-same": (["model.kind=upt"], lambda c: c.model.dim, 96),
    "optimizer": (["optimizer.kind=sgd"], lambda c: c.optimizer.kind, "sgd"),
    "schedule": (["schedule.kind=one_cycle"], lambda c: c.schedule.kind, "one_cycle"),
}


@pytest.mark.parametrize(("overrides", "read", "expected"), NEW_KINDS.values(), ids=NEW_KINDS)
def test_a_new_kind_drops_the_options_of_the_old_one(overrides, read, expected) -> None:
    options = read(load_config(overrides))
    if isinstance(options, dict):
        options = {name: value for name, value in options.items() if value is not None}
    assert options == expected

"""Settings are composed as by Hydra; an invalid one is refused with the line to change."""

import os
from itertools import pairwise
from pathlib import Path
from threading import Thread

import pytest
from processes import lay

from noether.common.errors import RequestError
from noether.config.compose import dump_config, load_config
from noether.config.groups import configs_folder
from noether.config.sweep import expand_sweep
from tests.refusal import refusal, refusal_with


def test_each_of_several_problems_is_answered_with_a_line_that_works() -> None:
    with pytest.raises(RequestError) as caught:
        load_config(["optimizer.learning_rate=abc", "hidden_dim=96", "save_every=2", "seed=-1"])
    first, _, *others = caught.value.fix.split("\n")
    fixes = [first, *(other.partition("   → ")[2] for other in others)]
    others = ["model.dim=96", "optimizer.learning_rate=0.001", "seed=0"]
    assert sorted(fixes) == ["'trainer.checkpoint_every=2 updates'", *others]


ACCEPTED = {
    "plain": (["accelerator=gpu"], lambda c: c.accelerator == "gpu"),
    "quoted-list-as-a-shell-hands-it-over": (['+devices="0,1,2,3"'], lambda c: c.devices == "0,1,2,3"),
    "a-name-that-is-a-number": (["run_id=7"], lambda c: c.run_id == "7"),
    "a-text-of-a-section-that-is-a-number": (["slurm.slurm_partition=1e3"], lambda c: c.slurm.slurm_partition == "1e3"),
    "yaml-list-of-devices": (["devices=[0,1]"], lambda c: c.devices == "0,1"),
    "group": (["model=upt"], lambda c: c.model.dim == 192),
    "group-and-value-in-any-order": (["model.dim=48", "model=upt"], lambda c: (c.model.dim, c.model.heads) == (48, 3)),
    "deleted-key-falls-back-to-the-schema": (["~optimizer.weight_decay"], lambda c: c.optimizer.weight_decay == 0),
    "updates-replace-the-epochs-of-the-file": (["trainer.max_updates=7"],
        lambda c: (c.trainer.max_updates, c.trainer.max_epochs) == (7, None)),
    "users-own-class": (["+experiment/test=own"],
        lambda c: c.model.kind == "my_package.MyModel" and c.model.options() == {"width": 3}),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "holds"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_settings_are_composed(overrides, holds, tmp_path: Path) -> None:
    own = {"experiment/test/own.yaml": "# @package _global_\ndefaults: [{override /model: own}]\n"}
    own |= {"model/own.yaml": "kind: my_package.MyModel\nwidth: 3\n"}
    lay(tmp_path, {**own, "mine.yaml": (configs_folder() / "train.yaml").read_text()})
    assert holds(load_config(overrides, hp=tmp_path / "mine.yaml"))


def test_a_file_from_anywhere_finds_the_groups(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("defaults: [/train, _self_]\nseed: 7\ntrainer: {max_epochs: 2}\nmodel: upt\n")
    assert load_config(hp=file).model.dim == 192
    config = load_config(["model.dim=48"], hp=file)
    assert (config.seed, config.trainer.max_epochs, config.model.dim) == (7, 2, 48)


WITHOUT_DEFAULTS = {
    "empty": ("", lambda c: c == load_config()),
    "a-group-s-option": ("model: upt\nseed: 3\n", lambda c: (c.model.dim, c.seed) == (192, 3)),
    "a-name-that-is-a-number": ('run_id: "7"\n', lambda c: c.run_id == "7"),
    "a-setting": ("seed: 7\n", lambda c: (c.seed, c.trainer.max_epochs) == (7, 36)),
    "another-length": ("trainer: {max_updates: 5}\n",
        lambda c: (c.trainer.max_updates, c.trainer.max_epochs) == (5, None)),
    "another-kind": ("model: {kind: transolver}\n", lambda c: c.model.kind == "transolver"),
}  # fmt: skip


@pytest.mark.parametrize(("content", "holds"), WITHOUT_DEFAULTS.values(), ids=WITHOUT_DEFAULTS.keys())
def test_a_file_without_defaults_changes_those_of_the_project(content: str, holds, tmp_path: Path) -> None:
    file = tmp_path / "it's my = file.yaml"
    file.write_text(content)
    assert holds(load_config(hp=file))


def test_the_resolved_configuration_reads_back_to_itself(tmp_path: Path) -> None:
    config = load_config(["trainer.max_updates=7", 'devices="0,1"', "schedule=one_cycle", "optimizer=lion"])
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert load_config(hp=file) == config


DOUBLED = "a: x\n" + "".join(f"{name}: ${{{last}}}${{{last}}}\n" for last, name in pairwise("abcdefghijklmnopqr"))
BROKEN_FILES = {
    "tabs": ("trainer:\n\tmax_epochs: 3\n", "mine.yaml:2 is not valid YAML"),
    "a-list": ("- 1\n- 2\n", "contains no settings"),
    "a-number-for-a-name": ("run_id: 7\n", 'run_id: "7"'),
    "unknown-default": ("defaults: [/modl: upt]\n", "no configuration 'modl/upt'"),
    "aliases": ("a: &a [x, x]\nb: [" + "*a, " * 9999 + "]\n", "mine.yaml:2 expands to more than noether reads"),
    "itself": ("seed: 1\na: &a [*a]\n", "mine.yaml:2 expands to more than noether reads"),
    "digits": (f"seed: 1\nrun_id: {'9' * 5000}\n", "mine.yaml:2 is not valid YAML"),
    "hexadecimal": (f"seed: 0x{'f' * 20}\n", "a whole number of more than 64 bits"),
    "a-tag": ("seed: !!int ''\n", "mine.yaml:1 is not valid YAML"),
    "too-large": ("# comment\n" * 200_000, "larger than 1,048,576 bytes"),
    "names-without-end": (DOUBLED, "settings name others without end"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_broken_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with refusal(words=message):
        load_config(hp=file)


TYPED = {
    "digits": (["seed=" + "9" * 5000], "override-too-long"),
    "more-than-64-bits": (["seed=" + "9" * 20], "number-too-long"),
    "brackets": (["a=" + "[" * 3000], "override-too-long"),
    "a-long-list": (["a=[" + "1," * 60_000 + "1]"], "too-many-overrides"),
    "words": (["seed=1"] * 100_000, "too-many-overrides"),
}


@pytest.mark.parametrize(("words", "code"), TYPED.values(), ids=TYPED)
def test_what_would_take_hours_to_parse_is_refused(words: list[str], code: str) -> None:
    with refusal(code):
        load_config(words)
    if code == "too-many-overrides":
        with refusal(code):
            expand_sweep(words)


def test_a_pipe_is_read_once_and_not_by_a_job(noether, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for words, said in (("settings",), "trainer.max_epochs=7"), (("plan", "-m", "seed=1,2"), "seed=2"):
        Thread(target=pipe.write_text, args=("trainer: {max_epochs: 7}\n",), daemon=True).start()
        assert said in noether(*words, "--hp", str(pipe), code=0).out
    assert "is a pipe" in noether("submit", "--print", "--hp", str(pipe), code=2).err


def test_the_documented_configurations_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(hp="configs/train_shapenet.yaml").dataset.kind == "shapenet_car"
    for absent in ("configs/train_car.yaml", "my/configs/train.yaml", str(tmp_path / "configs/train.yaml")):
        with refusal("no-configuration-file"):
            load_config(hp=absent)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.yaml").write_text("defaults: [/train_shapenet, _self_]\n")
    assert load_config(hp="configs/train.yaml").dataset.kind == "shapenet_car"  # a user's file wins over ours
    (tmp_path / "configs" / "train.yaml").write_text("defaults: [/train, _self_]\nseed: 9\n")
    assert load_config(hp="configs/train.yaml").seed == 9  # a user's file may include our file of that name


def test_a_missing_file_names_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "train_cars.yaml").write_text("seed: 1\n")
    with refusal("no-configuration-file", words=f"--hp {tmp_path / 'train_cars.yaml'}"):
        load_config(hp=tmp_path / "train_car.yaml")
    (tmp_path / "train_car.yaml").mkdir()
    with refusal("no-configuration-file", words=f"--hp {tmp_path / 'train_cars.yaml'}") as caught:
        load_config(hp=tmp_path / "train_car.yaml")
    assert caught.value.seen.endswith(" is a folder")


@pytest.mark.parametrize(
    "path", sorted(configs_folder().glob("*/**/*.yaml")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_every_option_of_every_group_composes(path: Path) -> None:
    group = path.parent.relative_to(configs_folder())
    prefix = "+" if group.parts[0] == "experiment" else ""
    # The classification data set, model and task compose only together.
    of_classes = {"dataset": "mnist", "model": "convnet", "task": "classification"}
    beside = [f"{name}={option}" for name, option in of_classes.items() if path.stem in of_classes.values()]
    load_config([*(beside if not prefix else []), f"{prefix}{group}={path.stem}"])


NEW_KINDS = {
    "model": (["model.kind=my.Model", "model.width=3"], lambda c: c.model.options(), {"width": 3}),
    "model-with-its-group": (["model=transformer", "model.kind=my.Model"], lambda c: c.model.options(), {}),
    "dataset": (["dataset.kind=my.Data", "dataset.points_per_update.surface=5"],
        lambda c: (c.dataset.options(), c.dataset.points_per_update), ({}, {"surface": 5})),
    "task": (["task.kind=my.Task"], lambda c: c.task.options(), {}),
    "known": (["model.kind=transformer"], lambda c: (c.model.dim, c.model.depth), (192, 12)),
    "optimizer": (["optimizer.kind=sgd"], lambda c: c.optimizer.kind, "sgd"),
}  # fmt: skip


@pytest.mark.parametrize(("overrides", "read", "expected"), NEW_KINDS.values(), ids=NEW_KINDS)
def test_a_new_kind_drops_the_options_of_the_old_one(overrides, read, expected) -> None:
    options = read(load_config(overrides))
    if isinstance(options, dict):
        options = {name: value for name, value in options.items() if value is not None}
    assert options == expected


APART = {
    "digits-without-task-and-model": ("dataset=mnist",),
    "cars-for-the-convolutional-net": ("model=convnet", "task=classification"),
}


def test_an_own_model_may_do_anything(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "defaults: [/dataset: mnist, /task: classification, /optimizer: adamw, /schedule: cosine, _self_]\n"
        "model: {kind: mine.Model}\n"
        "trainer: {effective_batch_size: 8, max_epochs: 1}\n"
    )
    assert load_config(hp=file).model.kind == "mine.Model"


@pytest.mark.parametrize("overrides", APART.values(), ids=APART.keys())
def test_parts_that_do_not(overrides: tuple[str, ...]) -> None:
    with refusal_with("do not fit together", "dataset.kind="):
        load_config(overrides)

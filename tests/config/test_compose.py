"""What was asked for is composed as Hydra does it, or refused with the line to change."""

from pathlib import Path

import pytest

from noether.config.compose import configs_folder, dump_config, load_config
from noether.errors import ExitCode, RequestError
from tests.refusal import refusal

REFUSED = {
    "unknown-key": (["acelerator=gpu"], "unknown-key", "accelerator=gpu"),
    "unknown-nested-key": (["trainer.max_epoch=3"], "unknown-key", "trainer.max_epochs=3"),
    "unknown-section": (["trainr.max_epochs=3"], "unknown-key", "trainer.max_epochs=3"),
    "unknown-group-of-experiments": (["+experiment/elipsoid=quick"], "unknown-group", "+experiment/ellipsoid=quick"),
    "unknown-key-of-the-chosen-model": (["model.dimm=64"], "unknown-key", "model.dim=64"),
    "unknown-key-in-a-field": (
        ["task.fields.surface_pressure.unti=Pa"],
        "unknown-key",
        "task.fields.surface_pressure.unit=Pa",
    ),
    "wrong-type": (["trainer.effective_batch_size=many"], "invalid-value", "trainer.effective_batch_size=8"),
    "out-of-range": (["trainer.ema_decay=1.5"], "invalid-value", "leave trainer.ema_decay out"),
    "two-lengths": (["trainer.max_epochs=3", "trainer.max_updates=5"], "run-length", "trainer.max_epochs=3"),
    "no-length": (["~trainer.max_epochs"], "run-length", "trainer.max_epochs=60"),
    "interval-without-unit": (["trainer.log_every=5"], "length-without-unit", "'trainer.log_every=5 updates'"),
    "interval-with-unknown-unit": (
        ["trainer.log_every='5 fortnights'"],
        "not-a-length",
        "'trainer.log_every=10 updates'",
    ),
    "unknown-model-kind": (["model.kind=utp"], "unknown-kind-of-component", "model.kind=upt"),
    "unknown-optimizer-kind": (["optimizer.kind=adam"], "unknown-kind", "optimizer.kind=adamw"),
    "unknown-option-of-a-group": (["model=upp"], "unknown-configuration", "model=upt"),
    "sweep-on-one-run": (["devices=0,1"], "setting-given-twice", 'devices=\\"0,1\\"      (one text with commas)'),
    "one-folder-for-a-list": (["slurm.container_mounts=/data"], "invalid-value", "slurm.container_mounts='[/data]'"),
    "folders-for-a-list": (
        ["slurm.container_mounts=/data,/b:/mnt"],
        "setting-given-twice",
        "slurm.container_mounts='[/data,/b:/mnt]'",
    ),
    "one-line-for-a-list": (
        ["slurm.slurm_setup=module load a"],
        "invalid-value",
        "slurm.slurm_setup='[module load a]'",
    ),
    "one-number-for-two": (["optimizer.betas=0.9"], "invalid-value", "optimizer.betas='[0.9,0.999]'"),
    "nothing-to-delete": (["~nothing"], "nothing-to-delete", "leave ~nothing out"),
    "a-quote-in-a-name": (
        ["run_id=it's"],
        "unreadable-override",
        "run_id='\"it'\"'\"'s\"'      (quoted twice: once for the shell)",
    ),
    "not-an-override": (["what is this"], "unreadable-override", "leave 'what is this' out"),
    "tasks-against-gpus": (
        ["slurm.gpus_per_node=a100:4", "slurm.tasks_per_node=2"],
        "tasks-against-gpus",
        "slurm.tasks_per_node=4      (or leave it out)",
    ),
    "no-sample-at-once": (["trainer.max_batch_size=0"], "batch-size-below-one", "leave trainer.max_batch_size out"),
    "momentum-that-is-not-there": (
        ["optimizer=sgd", "optimizer.momentum=0", "optimizer.nesterov=true"],
        "nesterov-without-momentum",
        "leave optimizer.nesterov out",
    ),
    "more-points-than-there-are": (
        ["dataset.points_per_update.surface=99999"],
        "more-points-than-made",
        "leave dataset.points_per_update.surface out",
    ),
    "heads-that-do-not-divide": (["model.dim=100", "model.heads=3"], "heads-do-not-divide", "model.dim=102"),
    "transolver-heads": (["model=transolver", "model.heads=7"], "heads-do-not-divide", "model.dim=259"),
    "option-of-another-model": (["model=transformer", "model.radius=9"], "unknown-key", "leave model.radius out"),
    "more-supernodes-than-points-of-ab-upt": (
        ["model=ab_upt_small", "model.supernodes=2000"],
        "too-few-geometry-points",
        "model.supernodes=512      (or more dataset.geometry_points)",
    ),
    "more-supernodes-than-points": (
        ["model.supernodes=2000"],
        "too-few-geometry-points",
        "model.supernodes=512      (or more dataset.geometry_points)",
    ),
    "run-id-is-a-path": (["run_id=a/b"], "run-id-not-a-name", "leave run_id out"),
    "port-out-of-range": (["master_port=70000"], "invalid-value", "leave master_port out"),
    "scalar-of-no-field": (
        ["task.scalars.lift_coefficient.pressure=presure"],
        "not-an-output-field",
        "leave task.scalars.lift_coefficient.pressure out",
    ),
}


@pytest.mark.parametrize(("overrides", "code", "fix"), REFUSED.values(), ids=REFUSED.keys())
def test_wrong_settings_are_refused_with_the_line_to_change(overrides: list[str], code: str, fix: str) -> None:
    with pytest.raises(RequestError) as caught:
        load_config(overrides)
    assert (caught.value.code, caught.value.fix) == (code, fix)
    assert caught.value.exit_code == ExitCode.REQUEST


def test_several_problems_are_all_named() -> None:
    with pytest.raises(RequestError) as caught:
        load_config(["seed=-1", "trainer.ema_decay=2", "acelerator=gpu"])
    for key in ("seed", "trainer.ema_decay", "acelerator"):
        assert key in str(caught.value)


ACCEPTED = {
    "plain": (["accelerator=gpu"], lambda c: c.accelerator == "gpu"),
    "plus-on-a-key-of-the-schema": (["+accelerator=gpu"], lambda c: c.accelerator == "gpu"),
    "quoted-list-as-a-shell-hands-it-over": (['+devices="0,1,2,3"'], lambda c: c.devices == "0,1,2,3"),
    "a-name-that-is-a-number": (["run_id=7"], lambda c: c.run_id == "7"),
    "a-name-that-the-grammar-takes-for-401": (["run_id=40_1"], lambda c: c.run_id == "40_1"),
    "a-folder-that-is-a-number": (["output_path=2026"], lambda c: c.output_path == Path("2026")),
    "a-text-of-a-section-that-is-a-number": (["slurm.slurm_partition=1e3"], lambda c: c.slurm.slurm_partition == "1e3"),
    "number-of-devices": (["+devices=2"], lambda c: c.devices == "2"),
    "yaml-list-of-devices": (["devices=[0,1]"], lambda c: c.devices == "0,1"),
    "yaml-list-of-one-device": (["devices=[2]"], lambda c: c.devices == "2,"),
    "group": (["model=upt"], lambda c: c.model.dim == 192),
    "group-and-value-in-any-order": (["model.dim=48", "model=upt"], lambda c: (c.model.dim, c.model.heads) == (48, 3)),
    "deleted-key-falls-back-to-the-schema": (["~optimizer.weight_decay"], lambda c: c.optimizer.weight_decay == 0),
    "updates-replace-the-epochs-of-the-file": (
        ["trainer.max_updates=7"],
        lambda c: (c.trainer.max_updates, c.trainer.max_epochs) == (7, None),
    ),
    "null": (["trainer.clip_gradient_norm=null"], lambda c: c.trainer.clip_gradient_norm is None),
    "users-own-class": (
        ["+experiment/test=own"],
        lambda c: c.model.kind == "my_package.MyModel" and c.model.options() == {"width": 3},
    ),
}


@pytest.mark.parametrize(("overrides", "holds"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_settings_are_composed(overrides, holds, tmp_path: Path) -> None:
    (tmp_path / "experiment/test").mkdir(parents=True)
    (tmp_path / "experiment/test/own.yaml").write_text("# @package _global_\ndefaults: [{override /model: own}]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model/own.yaml").write_text("kind: my_package.MyModel\nwidth: 3\n")
    (tmp_path / "mine.yaml").write_text((configs_folder() / "train.yaml").read_text())
    assert holds(load_config(overrides, hp=tmp_path / "mine.yaml"))


def test_a_file_from_anywhere_finds_the_groups(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "mine.yaml"
    file.parent.mkdir()
    file.write_text("defaults: [/train, _self_]\nseed: 7\ntrainer: {max_epochs: 2}\n")
    config = load_config(["model.dim=48"], hp=file)
    assert (config.seed, config.trainer.max_epochs, config.model.dim) == (7, 2, 48)


WITHOUT_DEFAULTS = {
    "empty": ("", lambda c: c == load_config()),
    "a-setting": ("seed: 7\n", lambda c: (c.seed, c.trainer.max_epochs) == (7, 36)),
    "a-setting-of-a-section": (
        "trainer: {ema_decay: 0.5}\n",
        lambda c: (c.trainer.ema_decay, c.trainer.max_epochs) == (0.5, 36),
    ),
    "another-length": (
        "trainer: {max_updates: 5}\n",
        lambda c: (c.trainer.max_updates, c.trainer.max_epochs) == (5, None),
    ),
    "the-same-kind-stands-for-itself": ("model: {kind: upt}\n", lambda c: c.model.dim == 192),
    "another-kind": ("model: {kind: transolver}\n", lambda c: c.model.kind == "transolver"),
    "a-number-as-yaml-1.2-has-it": ("optimizer: {learning_rate: 1e-3}\n", lambda c: c.optimizer.learning_rate == 1e-3),
}


@pytest.mark.parametrize(("content", "holds"), WITHOUT_DEFAULTS.values(), ids=WITHOUT_DEFAULTS.keys())
def test_a_file_without_defaults_changes_those_of_the_project(content: str, holds, tmp_path: Path) -> None:
    file = tmp_path / "it's my = file.yaml"
    file.write_text(content)
    assert holds(load_config(hp=file))


def test_a_file_without_defaults_finds_its_own_groups_and_takes_overrides(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "own.yaml").write_text("kind: my_package.MyModel\nwidth: 3\n")
    file = tmp_path / "mine.yaml"
    file.write_text("trainer: {max_updates: 5}\n")
    config = load_config(["model=own", "trainer.max_epochs=2", "seed=4"], hp=file)
    assert (config.model.kind, config.trainer.max_epochs, config.trainer.max_updates) == ("my_package.MyModel", 2, None)


def test_the_resolved_configuration_reads_back_to_itself(tmp_path: Path) -> None:
    config = load_config(["trainer.max_updates=7", 'devices="0,1"', "schedule=one_cycle", "optimizer=lion"])
    file = tmp_path / "config.yaml"
    file.write_text(dump_config(config))
    assert load_config(hp=file) == config


BROKEN_FILES = {
    "broken-yaml": ("a: 1\nb: [\nc", "mine.yaml:3 is not valid YAML"),
    "tabs": ("trainer:\n\tmax_epochs: 3\n", "mine.yaml:2 is not valid YAML"),
    "a-name-that-is-a-number": ("defaults: [/train, _self_]\nrun_id: 7\n", 'run_id: "7"'),
    "a-list": ("- 1\n- 2\n", "contains no settings"),
    "unknown-default": ("defaults: [/modl: upt]\n", "no configuration 'modl/upt'"),
}


@pytest.mark.parametrize(("content", "message"), BROKEN_FILES.values(), ids=BROKEN_FILES.keys())
def test_broken_files_are_named(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content)
    with pytest.raises(RequestError) as caught:
        load_config(hp=file)
    assert message in str(caught.value)


def test_the_documented_configurations_are_found_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_config(hp="configs/train_shapenet.yaml").dataset.kind == "shapenet_car"
    for absent in ("configs/train_car.yaml", "my/configs/train.yaml", str(tmp_path / "configs/train.yaml")):
        with refusal("no-configuration-file"):
            load_config(hp=absent)
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "train.yaml").write_text("defaults: [/train_shapenet, _self_]\n")
    assert load_config(hp="configs/train.yaml").dataset.kind == "shapenet_car"  # one's own comes first


def test_a_missing_file_names_its_nearest_neighbour(tmp_path: Path) -> None:
    (tmp_path / "train_cars.yaml").write_text("seed: 1\n")
    with refusal("no-configuration-file") as caught:
        load_config(hp=tmp_path / "train_car.yaml")
    assert f"--hp {tmp_path / 'train_cars.yaml'}" in str(caught.value)
    (tmp_path / "train_car.yaml").mkdir()
    with refusal("no-configuration-file") as caught:
        load_config(hp=tmp_path / "train_car.yaml")
    assert caught.value.seen.endswith(" is a folder")
    assert f"--hp {tmp_path / 'train_cars.yaml'}" in str(caught.value)


@pytest.mark.parametrize(
    "path", sorted(configs_folder().glob("*/**/*.yaml")), ids=lambda p: f"{p.parent.name}-{p.stem}"
)
def test_every_option_of_every_group_composes(path: Path) -> None:
    group = path.parent.relative_to(configs_folder())
    prefix = "+" if group.parts[0] == "experiment" else ""
    # A data set, a model and a task of classes are composed with the other two.
    of_classes = {"dataset": "mnist", "model": "convnet", "task": "classification"}
    beside = [f"{name}={option}" for name, option in of_classes.items() if path.stem in of_classes.values()]
    load_config([*(beside if not prefix else []), f"{prefix}{group}={path.stem}"])

"""Settings changed since the checkpoint: each is accepted silently, accepted and printed, or needs accept_changes."""

import pytest
from conftest import TINY

from noether.checkpoints.resume import (
    RULES,
    UNLISTED,
    ResumeRule,
    accepted_changes,
    compare_configs,
    data_changes,
    rule_of,
)
from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.config.schema import RunConfig
from tests.refusal import refusal

BEFORE = load_config((), TINY).model_dump(mode="json")

CASES = {
    "nothing": ([], [], []),
    "devices-and-paths": (["devices=4", "output_path=/x", "run_id=a", "num_workers=2"], [], []),
    "logging": (["trainer.log_every=1 updates", "tracker.tensorboard=true", "trainer.keep_checkpoints=1"], [], []),
    "accumulation": (["trainer.max_batch_size=1"], [], []),
    "length": (["trainer.max_updates=12"], ["trainer.max_updates"], []),
    "learning-rate": (["optimizer.learning_rate=1e-5"], ["optimizer.learning_rate"], []),
    "schedule": (["schedule=constant"], None, []),
    "seed": (["seed=1"], [], ["seed"]),
    "optimiser-kind": (["optimizer=sgd"], None, ["optimizer.kind"]),
    "batch-size": (["trainer.effective_batch_size=8"], [], ["trainer.effective_batch_size"]),
    "precision": (["trainer.precision=bf16"], [], ["trainer.precision"]),
    "EMA weights": (["trainer.ema_decay=0.9"], [], ["trainer.ema_decay"]),
    "model": (["model.dim=64", "model.heads=4"], [], ["model.dim", "model.heads"]),
    "task": (["task.domain_low=-4.0"], [], ["task.domain_low"]),
    "derived-figures": (["task.scalars.lift_coefficient.density=1.2"], ["task.scalars.lift_coefficient.density"], []),
}


@pytest.mark.parametrize(("overrides", "said", "refused"), CASES.values(), ids=CASES.keys())
def test_each_change_is_free_said_or_refused(overrides, said, refused) -> None:
    changes = compare_configs(BEFORE, load_config(overrides, TINY))
    assert [change.key for change in changes if change.rule is ResumeRule.REFUSED] == refused
    if said is not None:
        assert [change.key for change in changes if change.rule is ResumeRule.ANNOUNCED] == said
    if not refused:
        lines = accepted_changes(changes, (), "runs/a")
        assert len(lines) == sum(change.rule is ResumeRule.ANNOUNCED for change in changes)
        return
    with pytest.raises(RequestError) as caught:
        accepted_changes(changes, (), "runs/a")
    for key in refused:
        assert f"{key}: " in str(caught.value)
    # Even if the user accepts a change of `model.dim`, the checkpoint's weights no longer fit.
    fix = "run_id=ANOTHER_NAME" if "model.dim" in refused else f"'accept_changes=[{','.join(refused)}]'"
    assert fix in caught.value.fix
    assert ("accept_changes" in caught.value.fix) == ("model.dim" not in refused)
    assert accepted_changes(changes, refused, "runs/a"), "the advised changes must be accepted and printed"


def test_what_is_advised_for_other_data_accepts_them_too() -> None:
    """Regression: the program refused the accept_changes that it had advised, after it had read the data."""
    changes = compare_configs(BEFORE, load_config(["dataset.train_shapes=30", "dataset.test_shapes=6"], TINY))
    with refusal("settings-changed", fix="'accept_changes=[dataset]'"):
        accepted_changes(changes, (), "runs/a")
    before, now = ({"training": count, "test": 4, "digest": "0"} for count in (20, 30))
    assert data_changes({"data": before}, now, ["dataset"], "runs/a")


def test_a_change_is_accepted_by_key_or_section() -> None:
    for accept in ("model.dim,seed", "model,seed", "all"):
        now = load_config(["model.dim=48", "seed=3", f"accept_changes='{accept}'"], TINY)
        assert len(accepted_changes(compare_configs(BEFORE, now), now.accept_changes, "runs/a")) == 2, accept
    for accept in ("model", "mod,seed"):  # "model" leaves `seed` out, and "mod" is only part of a name.
        now = load_config(["model.dim=48", "seed=3", f"accept_changes='{accept}'"], TINY)
        with pytest.raises(RequestError):
            accepted_changes(compare_configs(BEFORE, now), now.accept_changes, "runs/a")


def test_a_setting_that_an_older_version_did_not_know_counts_as_its_default() -> None:
    older = {key: value for key, value in BEFORE.items() if key not in ("accept_changes", "num_workers")}
    assert compare_configs(older, load_config((), TINY)) == []


def test_a_setting_of_another_version_is_compared_as_it_stands() -> None:
    changes = compare_configs({**BEFORE, "warp": 9}, load_config((), TINY))
    assert [(change.key, change.rule) for change in changes] == [("warp", ResumeRule.REFUSED)]


def test_every_setting_has_a_place_in_the_table() -> None:
    """Otherwise a change of the setting is refused on resume, which is safe but inconvenient."""
    unlisted = [name for name in RunConfig.model_fields if name != "trainer" and rule_of(name) is UNLISTED]
    trainer = RunConfig.model_fields["trainer"].annotation.model_fields
    unlisted = [name for name in unlisted if not any(key.startswith(f"{name}.") for key in RULES)]
    assert unlisted == []
    assert [name for name in trainer if rule_of(f"trainer.{name}") is UNLISTED] == []

"""Files and their `defaults` lists are composed as by Hydra; mistakes that Hydra ignores are reported."""

from pathlib import Path
from typing import Any

import pytest
from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf
from processes import lay

from noether.config.compose import compose_settings
from noether.config.groups import configs_folder, our_groups
from tests.refusal import refusal

EXPERIMENTS = [f"+{group}={one}" for group, options in our_groups().items() if "/" in group for one in options]


@pytest.mark.parametrize("words", [[], *([one] for one in EXPERIMENTS), ["model=upt", "~tracker", "++seed=7"]], ids=str)
def test_our_files_are_composed_as_by_hydra(words: list[str]) -> None:
    with initialize_config_dir(str(configs_folder()), version_base="1.3"):
        theirs = OmegaConf.to_container(compose("train", words), resolve=True)
    assert compose_settings(words) == theirs


GROUPS = {
    "model/a.yaml": "kind: my.A\nwidth: 1\nheads: 2\n",
    "model/b.yaml": "defaults: [a, _self_]\nwidth: 5\n",
    "model/c.yaml": "defaults: [_self_, a]\nwidth: 5\n",
    "model/part/d.yaml": "x: 1\n",
    "model/e.yaml": "defaults: [part: d]\nkind: my.E\n",
    "optimizer/o.yaml": "kind: my.O\n",
    "experiment/one.yaml": "# @package _global_\ndefaults: [{override /model: b}]\nseed: 1\n",
    "experiment/two.yaml": "# @package _global_\ndefaults: [one, {override /model: a}]\noutput_path: two\n",
    "experiment/lists.yaml": "# @package _global_\ndefaults: [/optimizer: o]\n",
}
LISTS = {
    "a-group": ("[model: a]", [], {"model": {"kind": "my.A", "width": 1, "heads": 2}}),
    "a-file-of-the-same-group": ("[/model: b]", [], {"model.width": 5, "model.heads": 2}),
    "null": ("[model: null]", [], {}),
    "several-options": ("[experiment: [one, lists]]", [], {"optimizer.kind": "my.O", "model.width": 5}),
    "an-override-before-its-group": ("[experiment: one, model: a]", [], {"model.width": 5}),
    "the-file-s-own-settings-come-last": ("[model: a]\nmodel: {width: 9}", [], {"model.width": 9, "model.heads": 2}),
    "unless-it-says-where": ("[_self_, model: a]\nmodel: {width: 9}", [], {"model.width": 1}),
    "override": ("[model: a, override /model: b]", [], {"model.width": 5}),
    "the-outermost-override-counts": ("[model: e, experiment: two]", [], {"model.width": 1, "seed": 1}),
    "then-the-last": ("[model: e, /experiment/two, /experiment/one]", [], {"model.width": 5}),
    "what-is-typed-counts-most": ("[model: a, override /model: e]", ["model=b"], {"model.width": 5}),
    "an-experiment-comes-last": ("[model: a]\nseed: 3", ["+experiment=one"], {"seed": 1, "model.width": 5}),
    "a-group-that-no-list-has": ("[model: a]", ["optimizer=o"], {"optimizer": {"kind": "my.O"}}),
    "another-kind-has-its-own-settings": ("[model: a]\nmodel: {kind: my.Z}", [], {"model": {"kind": "my.Z"}}),
    "another-length": ("[]\ntrainer: {max_epochs: 1}", ["trainer.max_updates=2"], {"trainer": {"max_updates": 2}}),
}  # fmt: skip


@pytest.fixture
def mine(tmp_path: Path):
    """Return a function that writes a user's settings file and groups, and composes the file with more overrides."""
    lay(tmp_path, GROUPS)

    def composed(content: str, words: list[str] | None = None) -> dict[str, Any]:
        (tmp_path / "mine.yaml").write_text(content)
        return compose_settings(words or [], tmp_path / "mine.yaml")

    return composed


def at(settings: Any, name: str) -> Any:
    for part in name.split("."):
        settings = settings[part]
    return settings


@pytest.mark.parametrize(("content", "words", "expected"), LISTS.values(), ids=LISTS)
def test_lists(content: str, words: list[str], expected: dict[str, Any], mine) -> None:
    settings = mine(f"defaults: {content}\n", words)
    assert {name: at(settings, name) for name in expected} == expected
    assert expected or not settings


INTERPOLATED = {
    "a-setting": ("a: 3\nb: ${a}", 3),
    "from-here": ("a: 3\nc: {x: 4, y: '${.x}', z: '${..a}'}\nb: ['${c.y}', '${c.z}']", [4, 3]),
    "a-section": ("a: {x: '${d}'}\nd: 1\nb: ${a}", {"x": 1}),
    "an-element": ("a: [5, 6]\nb: ${a[1]}", 6),
    "the-environment": ("b: ${oc.env:SLURM_JOB_ID}", "77"),
    "the-environment-or-else": ("b: run-${oc.env:SLURM_NOT_SET,7}", "run-7"),
    "the-environment-by-a-name-that-is-made": ("e: env\nb: '${oc.${e}:SLURM_JOB_ID}'", "77"),
    "not-meant": ("b: \\${a}", "${a}"),
}


@pytest.mark.parametrize(("content", "expected"), INTERPOLATED.values(), ids=INTERPOLATED)
def test_interpolation(content: str, expected: object, mine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert mine(f"defaults: []\n{content}\n")["b"] == expected


REFUSED = {
    "no-option": ("defaults: [model: z]", "unknown-configuration"),
    "no-file": ("defaults: [/nothing]", "unknown-configuration"),
    "itself": ("defaults: [mine]", "unknown-configuration"),
    "another-package": ("defaults: [model@x: a]", "unsupported-default"),
    "a-package-in-the-first-line": ("# @package x.y\nseed: 1", "unsupported-default"),
    "optional": ("defaults: [{optional model: z}]", "unsupported-default"),
    "an-interpolated-name": ("defaults: [model: '${x}']", "unknown-configuration"),
    "a-number": ("defaults: [model: 3]", "unsupported-default"),
    "a-key-that-stands-twice": ("seed: 1\nseed: 2", "invalid-yaml"),
    "no-such-setting": ("a: ${b}", "interpolation-not-found"),
    "round-in-circles": ("a: ${b}\nb: x${a}", "interpolation-loop"),
    "an-open-brace": ("a: ${b", "invalid-interpolation"),
    "another-resolver": ("a: ${now:%Y}", "unknown-resolver"),
    "a-secret": ("a: ${oc.env:AWS_SECRET}", "variable-not-allowed"),
    "a-secret-by-a-name-that-is-made": ("e: env\na: '${oc.${e}:AWS_SECRET}'", "variable-not-allowed"),
    "a-variable-that-is-not-set": ("a: ${oc.env:SLURM_NOT_SET}", "variable-not-set"),
}


@pytest.mark.parametrize(("content", "code"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_composed_is_refused_with_a_fix(content: str, code: str, mine) -> None:
    with refusal(code) as caught:
        mine(f"{content}\n")
    assert caught.value.fix


def test_the_user_s_own_interpolations_stay_as_they_are(mine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_SECRET", "mine")
    mine("a: ${oc.env:HOME}\n")
    assert OmegaConf.create({"a": "${oc.env:MY_SECRET}"}).a == "mine"

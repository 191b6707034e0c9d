"""The lists of values of a sweep produce the same runs as with Hydra."""

import pytest

from noether.config.compose import load_config
from noether.config.sweep import expand_sweep, varied
from tests.refusal import refusal

SWEEPS = {
    "last-turns-fastest": (
        ["seed=1,2", "optimizer=adamw,sgd"],
        [[f"seed={seed}", f"optimizer={kind}"] for seed in (1, 2) for kind in ("adamw", "sgd")],
    ),
    "range-and-choice": (["seed=range(1,3)", "+x=choice(a)"], [["seed=1", "+x=a"], ["seed=2", "+x=a"]]),
    "quoted-comma-is-one-text": (['devices="0,1"', "seed=1,2"], [['devices="0,1"', f"seed={n}"] for n in (1, 2)]),
    "values-that-are-made": (["seed=range(1_0,1_2)"], [["seed=10"], ["seed=11"]]),
    "what-cannot-be-read-is-left-to-composing": (["seed=1,2", "a b"], [["seed=1", "a b"], ["seed=2", "a b"]]),
}


@pytest.mark.parametrize(("overrides", "runs"), SWEEPS.values(), ids=SWEEPS.keys())
def test_sweep(overrides, runs) -> None:
    assert expand_sweep(overrides) == runs


def test_each_run_composes_to_what_its_words_say() -> None:
    runs = [load_config(words) for words in expand_sweep(["seed=3,4", "optimizer=adamw,sgd", 'devices="0,1"'])]
    assert [(run.seed, run.optimizer.kind, run.devices) for run in runs] == [
        (seed, kind, "0,1") for seed in (3, 4) for kind in ("adamw", "sgd")
    ]


@pytest.mark.parametrize("text", ["run_id=1_1,1_2", "+run_id=2026_01,2026_02", "run_id=1e3,1.50"])
def test_a_text_that_looks_like_a_number_reads_back_as_it_was_written(text: str) -> None:
    names = text.partition("=")[2].split(",")
    assert [load_config(words).run_id for words in expand_sweep([text])] == names


@pytest.mark.parametrize("text", ["model=glob(*)", "seed=interval(0,1)"])
def test_what_has_no_list_is_refused(text: str) -> None:
    with refusal("no-sweep-values"):
        expand_sweep([text])


def test_varied_names_only_the_differences() -> None:
    assert varied([["a=1", "b=1"], ["a=1", "b=2"]]) == [["b=1"], ["b=2"]]
    assert varied([["a=1"]]) == [[]]

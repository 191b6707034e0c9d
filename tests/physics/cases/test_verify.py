"""Training is refused if prepared data were modified, and a run resumes only with the data that it began with."""

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from processes import flip
from simulated_cases import MAP, prepare, write_cases

from noether.common.errors import RequestError
from noether.config.compose import load_config
from noether.core.data.build import Splits, prepare_data
from noether.core.data.checks import data_identity
from noether.physics.cases.dataset import read_metadata
from tests.faults.data_changes import DATA
from tests.faults.fuzz_subjects import mutate
from tests.refusal import refusal


@pytest.fixture(scope="module")
def written(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cases")
    prepare(write_cases(folder / "source", 6), folder / "out", MAP)
    return folder / "out"


@pytest.fixture
def prepared(written: Path, tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(shutil.copytree(written, tmp_path / "out"))


def verify(folder: Path) -> int:
    """Prepare the data of a run; return how many files this has read."""
    read = []
    points = "dataset.points_per_update={surface: 8, volume: 8}"
    config = load_config(["dataset=cases", f"dataset_root={folder}", points])
    prepare_data(config, lambda done, total: read.append(done))
    return len(read)


def test_every_file_is_read_once_and_again_when_it_changed(prepared: Path) -> None:
    assert [verify(prepared), verify(prepared)] == [12, 0]
    shutil.copy(next(prepared.glob("cases/run_3/*.safetensors")), prepared / "copy")
    (prepared / "copy").replace(next(prepared.glob("cases/run_3/*.safetensors")))
    assert verify(prepared) == 1


def test_a_flipped_bit_is_refused_with_the_case(prepared: Path) -> None:
    verify(prepared)
    flip(prepared / "cases/run_2/volume.safetensors")
    for _ in range(2):  # the damaged file must not be remembered as intact
        with pytest.raises(RequestError) as refused:
            verify(prepared)
        assert "run_2" in refused.value.summary
        assert str(prepared / "cases/run_2/volume.safetensors") in refused.value.seen
        assert f"rm -r {prepared / 'cases/run_2'}" in refused.value.fix


def test_without_a_cache_everything_is_read_at_each_start(prepared: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert [verify(prepared), verify(prepared)] == [12, 12]


def test_no_mutation_of_dataset_json_is_read_without_a_word(prepared: Path) -> None:
    path, rng = prepared / "dataset.json", random.Random(0)
    whole, before = path.read_bytes(), read_metadata(prepared)
    for _ in range(1000):
        path.write_bytes(mutate(whole, rng))
        with suppress(RequestError):
            assert read_metadata(prepared) == before  # the mutation may only change white space
    path.write_text("[" * 100_000)
    with pytest.raises(RequestError):
        read_metadata(prepared)


def test_a_split_without_cases_is_refused_before_any_worker_starts(prepared: Path) -> None:
    DATA["cases"]["the only test case to train on"].make(prepared)
    with refusal("prepared-split-empty"):
        verify(prepared)


class Lines(list):
    """A user's data set."""


class Augmented(Lines):
    def __getitem__(self, index):
        return {"x": torch.rand(3)}


def test_own_data_is_told_by_its_length_and_first_samples_and_augmented_data_by_its_length() -> None:
    def lines(*values: float) -> Splits:
        return Splits(Lines({"x": torch.tensor([value])} for value in values), Lines())

    before = data_identity(lines(1.0, 2.0, 3.0))
    assert before == data_identity(lines(1.0, 2.0, 3.0))
    assert before != data_identity(lines(1.0, 2.5, 3.0))
    assert before != data_identity(lines(1.0, 2.0))
    assert data_identity(Splits(Augmented([0, 1]), Lines())) == {"training": 2, "test": 0, "digest": None}


@pytest.mark.slow
def test_a_run_does_not_go_on_with_other_data(noether, prepared: Path, tmp_path: Path) -> None:
    words = ["dataset=cases", "model=mlp", "model.dim=16", "dataset.points_per_update={surface: 8, volume: 8}"]
    short = ("trainer.effective_batch_size=2", "tracker.report=false", "tracker.tensorboard=false", "devices=1")
    run = ("accelerator=cpu", f"dataset_root={prepared}", f"output_path={tmp_path}", "run_id=a", "resume=auto")

    def train(updates: int, *more: str):
        return noether("train", *words, *short, *run, f"trainer.max_updates={updates}", *more)

    first = train(2)
    assert first.code == 0, first.err
    DATA["cases"]["two exchanged"].make(prepared)
    refused = train(3)
    assert refused.code == 2
    assert "[resume-other-data]" in refused.err
    accepted = train(3, "accept_changes=[dataset]")
    assert accepted.code == 0, accepted.err

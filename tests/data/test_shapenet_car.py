"""The preprocessed folder: made, kept, packed, split, and refused by name where a car is broken."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import REPOSITORY, TINY

from noether.data import shapenet_car
from noether.data.shapenet_car import (
    PUBLISHED,
    PUBLISHED_STATISTICS,
    differing_statistics,
    ensure_packed,
    open_shapenet_car,
    split_indices,
)
from noether.data.shapenet_car_prepare import prepare_folder
from noether.data.shapenet_car_raw import FOLDER_COUNTS
from noether.data.surviving_pool import surviving_map
from noether.errors import RequestError

pytest_plugins = ("shapenet_car_fixtures",)


@pytest.fixture(autouse=True)
def _in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packs without further processes, each of which imports torch anew; the slow tests take the real way."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr(
            shapenet_car, "surviving_map", lambda function, items, workers: surviving_map(function, items, 0)
        )


@pytest.fixture
def root(prepared: Path, tmp_path: Path) -> Path:
    """A copy that has never been packed: other tests of the session train on the folder itself, which packs it."""
    packed = shutil.ignore_patterns("*.safetensors", ".lock")
    return Path(shutil.copytree(prepared, tmp_path / "root", ignore=packed))


def a_car(root: Path) -> Path:
    return sorted((root / "preprocessed" / "param1").iterdir())[1]


def test_the_folder_has_the_published_files(prepared: Path) -> None:
    for key, shape in PUBLISHED.items():
        tensor = torch.load(a_car(prepared) / f"{key}.pt", weights_only=True)
        assert tensor.dtype == torch.float32
        assert tensor.shape[1:] == shape[1:]
        assert shape[0] in (-1, len(tensor))


@pytest.mark.slow
def test_preparing_again_keeps_what_is_whole_and_mends_what_is_not(raw_archive: Path, root: Path) -> None:
    def times() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in root.rglob("*.pt")}

    before = times()
    assert (prepare_folder(raw_archive, root).made, times()) == (0, before)
    torn = a_car(root) / "volume_sdf.pt"
    digest = hashlib.sha256(torn.read_bytes()).hexdigest()
    torn.write_bytes(torn.read_bytes()[:100])
    (sorted((root / "preprocessed" / "param0").iterdir())[0] / "sha256.json").unlink()
    done = prepare_folder(raw_archive, root, workers=2)
    assert (done.made, done.kept, done.counts) == (2, 4, {"param0": 2, "param1": 3, "param2": 1})
    assert hashlib.sha256(torn.read_bytes()).hexdigest() == digest
    assert "param3 has 0 of 100 cars" in done.shortfalls()
    assert not list(root.rglob("*.partial"))


def test_the_packed_file_holds_the_folder_and_is_made_once(root: Path) -> None:
    path = ensure_packed(root)
    first = path.stat().st_mtime_ns
    assert ensure_packed(root).stat().st_mtime_ns == first
    train, test = open_shapenet_car(path, "param0")
    assert (len(train), len(test)) == (4, 2)
    sample, folder = train[1], a_car(root)
    assert train.name(1) == f"param1-{folder.name}"
    for key, value in sample.items():
        assert torch.equal(value, torch.load(folder / f"{key}.pt", weights_only=True)), key
    quads = torch.load(folder / "surface_quads.pt", weights_only=True)
    assert np.array_equal(train.faces(1), quads)


def test_a_file_that_changed_is_packed_anew(root: Path) -> None:
    path = ensure_packed(root)
    changed = a_car(root) / "surface_pressure.pt"
    torch.save(torch.full((3586,), 5.0), changed)
    assert ensure_packed(root) == path
    assert open_shapenet_car(path, "param0")[0][1]["surface_pressure"].unique().tolist() == [5.0]


def test_a_folder_that_others_made_has_no_areas(root: Path) -> None:
    for path in root.rglob("*.pt"):
        if path.stem not in PUBLISHED:
            path.unlink()
    train, _ = open_shapenet_car(ensure_packed(root), "param0")
    assert train[0].keys() == PUBLISHED.keys()
    assert train.faces(0) is None


def test_the_packed_file_alone_is_a_data_root(root: Path, tmp_path: Path) -> None:
    path = ensure_packed(root, out=tmp_path / "copy")
    assert ensure_packed(tmp_path / "copy") == path
    assert len(open_shapenet_car(path, "param0")[0]) == 4


def test_a_folder_that_cannot_be_written_is_packed_in_the_cache(root: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (root / ".lock").mkdir()  # as good as read-only, for root too
    path = ensure_packed(root)
    assert path.is_relative_to(tmp_path / "cache")
    assert ensure_packed(root) == path


def save(path: Path, tensor: torch.Tensor) -> None:
    torch.save(tensor, path)


BROKEN = {
    "missing": ("surface_pressure.pt", lambda path: path.unlink(), "no such file"),
    "torn": ("volume_points.pt", lambda path: path.write_bytes(path.read_bytes()[:-200]), ""),
    "empty": ("volume_points.pt", lambda path: path.write_bytes(b""), ""),
    "not-a-tensor": ("volume_sdf.pt", lambda path: torch.save({"a": 1}, path), "dict"),
    "float64": ("volume_sdf.pt", lambda path: save(path, torch.zeros(125).double()), "float64"),
    "96-points-too-many": ("surface_pressure.pt", lambda path: save(path, torch.zeros(3682)), "shape (3682,)"),
    "another-count": ("volume_velocity.pt", lambda path: save(path, torch.zeros(124, 3)), "shape (124, 3)"),
    "nan": ("volume_velocity.pt", lambda path: save(path, torch.full((125, 3), torch.nan)), "375 values"),
    "code-in-a-pickle": ("volume_sdf.pt", lambda path: torch.save(Path("x"), path), ""),
}


@pytest.mark.parametrize(("file", "harm", "seen"), BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_car_is_named(file, harm, seen, root: Path) -> None:
    path = a_car(root) / file
    harm(path)
    with pytest.raises(RequestError) as refused:
        ensure_packed(root)
    assert refused.value.summary == f"{path} is broken"
    assert seen in refused.value.seen
    assert not list(root.glob("*.safetensors"))


def test_the_split_randperm189_is_the_published_one() -> None:
    params = [f"param{i}" for i, count in enumerate(FOLDER_COUNTS) for _ in range(count)]
    train, test = split_indices(params, "randperm189")
    assert (len(train), len(test)) == (700, 189)
    assert {550, 592, 229, 547, 62, 464, 798, 836} <= set(test)
    train, test = split_indices(params, "param0")
    assert (len(train), test) == (789, list(range(100)))


@pytest.mark.parametrize(
    ("split", "params", "words"),
    [("randperm189", ["param0"] * 5, "needs all cars"), ("param0", ["param1"] * 5, "needs cars in param0")],
)
def test_a_split_that_the_cars_do_not_have_is_refused(split, params, words) -> None:
    with pytest.raises(RequestError, match=words):
        split_indices(params, split)


def test_statistics_are_held_against_the_published_ones() -> None:
    arrays = {
        key: {"channels": [{"mean": mean, "std": std} for mean, std in zip(means, deviations, strict=True)]}
        for key, (means, deviations) in PUBLISHED_STATISTICS.items()
    }
    assert differing_statistics(arrays) == []
    arrays["volume_velocity"]["channels"][2]["mean"] += 1
    (words,) = differing_statistics(arrays)
    assert words.startswith("volume_velocity[2]: mean 18.546, std 5.85035; published 17.546")


@pytest.mark.slow
def test_the_commands_from_archive_to_description(raw_archive: Path, noether, tmp_path: Path) -> None:
    out = tmp_path / "car"
    tried = noether("data", "prepare", "shapenet_car", str(raw_archive), str(out), "--dry-run")
    assert "6 cars, 0 of them complete" in tried.out
    assert not out.exists()
    done = noether("data", "prepare", "shapenet_car", str(raw_archive), str(out), "--workers", "1")
    assert done.code == 0, done.err
    assert "6 cars prepared" in done.out
    assert "param1 has 3 of 99 cars" in done.out
    described = noether("data", "describe", "--json", "dataset=shapenet_car", f"dataset_root={out}")
    about = json.loads(described.out)
    assert (about["train"]["samples"], about["test"]["samples"]) == (4, 2)
    assert about["train"]["arrays"]["surface_pressure"]["shape"] == "(3586,)"
    assert "4 of the 789 training cars are here" in about["notes"][0]
    packed = noether("data", "pack", str(out), "--out", str(tmp_path / "fast"))
    assert f"dataset_root={tmp_path}/fast" in packed.out
    from_file = noether("data", "describe", "--hp", "configs/train_shapenet.yaml", f"dataset_root={tmp_path}/fast")
    assert from_file.code == 0, from_file.err
    assert "volume_velocity" in from_file.out


def test_the_embedded_data_set_is_described_too(noether) -> None:
    done = noether("data", "describe", "--hp", str(TINY), "--json")
    about = json.loads(done.out)
    assert (about["train"]["samples"], about["test"]["samples"]) == (20, 5)
    assert about["train"]["arrays"]["surface_points"]["shape"] == "(48, 3)"
    assert about["notes"] == []


MISTAKES = {
    "no-command": (["data"], 0, "usage: noether data COMMAND"),
    "unknown-command": (["data", "prepair"], 2, "did you mean 'data prepare'?"),
    "unknown-kind": (["data", "prepare", "shapenet-car", "x", "y"], 2, "prepare shapenet_car x y"),
    "too-few-words": (["data", "prepare", "shapenet_car"], 2, "noether data prepare shapenet_car SOURCE OUT"),
    "no-source": (["data", "prepare", "shapenet_car", "/nowhere", "y"], 2, "no raw data at /nowhere"),
    "workers": (["data", "prepare", "shapenet_car", "x", "y", "--workers", "many"], 2, "--workers is a number"),
    "workers-superscript": (
        ["data", "prepare", "shapenet_car", "x", "y", "--workers", "²"],
        2,
        "--workers is a number",
    ),
    "more-supernodes-than-points": (
        ["plan", "--hp", "{configs}/train_shapenet.yaml", "model.supernodes=4000"],
        2,
        "model.supernodes=3586",
    ),
    "more-points-than-a-car-has": (
        ["plan", "--hp", "{configs}/train_shapenet.yaml", "dataset.points_per_update={{surface: 4000}}"],
        2,
        "more than the 3586 surface points",
    ),
    "no-root": (["data", "describe", "dataset=shapenet_car"], 2, "ShapeNet-Car needs dataset_root"),
    "another-root": (["data", "pack", "/nowhere"], 2, "does not hold ShapeNet-Car"),
}


@pytest.mark.parametrize(("words", "code", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_mistakes_are_answered_in_words_and_write_nothing(words, code, message, noether, tmp_path: Path) -> None:
    words = [word.format(configs=REPOSITORY / "configs") for word in words]
    done = noether(*words, cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert done.code == code, done.out + done.err
    assert message in done.out + done.err
    assert "Traceback" not in done.err
    assert list(tmp_path.iterdir()) == []

import json
import shutil
from pathlib import Path

import pytest

from noether.checkpoints import format as checkpoint_format
from noether.checkpoints.format import (
    CheckpointFolder,
    DamagedCheckpoint,
    list_checkpoints,
    newest_intact,
    prune_checkpoints,
    recover_replaced,
    selected_checkpoint,
    write_checkpoint,
)
from noether.checkpoints.named import named_checkpoint
from noether.checkpoints.state import load_task_state
from noether.core.tasks.base import Task
from noether.runs.folder import RunFolder
from noether.runs.records import rows_text
from tests.refusal import refusal
from tests.saved import META


def write(folder: Path, updates: int, metric: float | None = None, content: str = "weights"):
    files = {"model.bin": [content.encode()], "b.json": [b"{}"]}
    return write_checkpoint(folder, updates, files, META | {"metric": metric})


def kept(folder: Path) -> list[int]:
    return [checkpoint.updates for checkpoint in list_checkpoints(folder)]


@pytest.mark.parametrize("name", ["model.bin", "b.json", "meta.json"])
@pytest.mark.parametrize("harm", ["one-bit", "cut", "gone"])
def test_any_harm_to_any_file_is_seen(name: str, harm: str, tmp_path) -> None:
    checkpoint = write(tmp_path, 1)
    path = checkpoint.path / name
    content = path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        path.write_bytes(content[:-1] if harm == "cut" else bytes([content[0] ^ 1]) + content[1:])
    assert name in checkpoint.damage()


HARMED = {
    "another-content": (lambda newest: (newest / "model.bin").write_text("other"), "model.bin has a different SHA-256"),
    "no-meta-data": (lambda newest: (newest / "meta.json").unlink(), "meta.json cannot be read"),
    "a-copy": (lambda newest: copy_over(newest.with_name("update-000000001"), newest), ""),
}


def copy_over(older: Path, newer: Path) -> None:
    shutil.rmtree(newer)
    shutil.copytree(older, newer)


@pytest.mark.parametrize(("harm", "words"), HARMED.values(), ids=HARMED)
def test_the_newest_intact_is_taken_and_the_damaged_is_named(harm, words: str, tmp_path) -> None:
    for updates in (1, 2, 3):
        newest = write(tmp_path, updates)
    harm(newest.path)
    assert kept(tmp_path) == [1, 2, 3]
    warnings: list[str] = []
    found = newest_intact(tmp_path, warnings.append)
    assert found.updates == 2
    assert len(warnings) == 1
    assert f"update-000000003 is skipped: {words}" in warnings[0]


def test_half_written_checkpoints_do_not_count(tmp_path) -> None:
    write(tmp_path, 1)
    (tmp_path / ".update-000000002.77.partial").mkdir()
    for name in ("update-000000001.bak", "update-3", "update-x", "update-000000003.txt"):
        (tmp_path / name).mkdir()
    assert kept(tmp_path) == [1]
    (tmp_path / "update-000000004").write_text("a file")
    assert kept(tmp_path) == [1, 4], "a file with the name of a checkpoint must be listed as a damaged one"
    assert "Not a directory" in str(list_checkpoints(tmp_path)[1].damage())


@pytest.mark.parametrize("file", ["model.bin", "meta.json"])
def test_a_damaged_best_checkpoint_is_named_and_the_next_best_selected(file, tmp_path) -> None:
    for updates, metric in ((1, 0.5), (2, 0.1), (3, 0.3), (4, None)):
        write(tmp_path, updates, metric)
    path = tmp_path / "update-000000002" / file
    path.write_bytes(path.read_bytes()[:-1])
    warnings: list[str] = []
    assert selected_checkpoint(tmp_path, warnings.append).updates == 3
    assert [file in warning and "update-000000002" in warning for warning in warnings] == [True]


def test_a_damaged_best_checkpoint_is_refused_where_another_would_give_other_metrics(tmp_path) -> None:
    folder = tmp_path / "checkpoints"
    for updates, metric in ((1, 0.5), (2, 0.1), (3, 0.3)):
        write(folder, updates, metric)
    assert named_checkpoint(RunFolder(tmp_path), None, "--checkpoint {}").updates == 2
    (folder / "update-000000002" / "model.bin").write_bytes(b"other")
    with pytest.raises(DamagedCheckpoint) as refused:
        named_checkpoint(RunFolder(tmp_path), None, "--checkpoint {}")
    assert "update-000000002" in refused.value.seen
    assert refused.value.fix == "--checkpoint update-000000003"


@pytest.mark.parametrize(("metric", "named"), [(0.1, True), (0.9, False), (None, False)])
def test_a_better_checkpoint_that_is_gone_is_named(metric, named, tmp_path) -> None:
    for updates in (1, 2):
        write(tmp_path / "checkpoints", updates, 0.5)
    row = {"kind": "checkpoint", "update": 3, "metric": metric}
    (tmp_path / "metrics.jsonl").write_text(rows_text([row]))
    warnings: list[str] = []
    assert selected_checkpoint(tmp_path / "checkpoints", warnings.append).updates == 1
    assert ["update-000000003 is missing" in warning for warning in warnings] == [True] * named


def forged(folder: Path, **changes) -> CheckpointFolder:
    """Write a checkpoint whose digests are correct but whose content no run would write."""
    checkpoint = write(folder, 1)
    meta = json.loads((checkpoint.path / "meta.json").read_text()) | changes
    meta["meta_sha256"] = checkpoint_format._meta_digest(meta)
    (checkpoint.path / "meta.json").write_text(json.dumps(meta))
    return checkpoint


class Scaling(Task):
    """A task whose program stores other keys in its scaling than the checkpoint does."""

    def __init__(self, *fitted: str) -> None:
        self.known = {"scaling": {"pressure": {key: [1.0] for key in fitted}}} if fitted else {}

    def state(self) -> dict:
        return self.known

    def load_state(self, state) -> None:
        pressure = state["scaling"]["pressure"]
        self.known = {"scaling": {"pressure": {"mean": pressure["mean"], "std": pressure["std"]}}}


SAVED = {"mean": [1.0], "std": [2.0]}
OTHERWISE = {
    "a-key-that-was-not-there": (("mean", "std", "log"), SAVED, "log (list) is only in this program"),
    "a-key-that-is-gone": (("mean", "std"), {**SAVED, "log": [1]}, "log (list) is only in the checkpoint"),
    "gone-where-nothing-is-fitted": ((), {**SAVED, "log": [1]}, "log (list) is only in the checkpoint"),
    "more-channels": (("mean", "std"), {**SAVED, "std": [2, 2]}, "std.1 (number) is only in the checkpoint"),
    "another-type": (("mean", "std"), {**SAVED, "std": ["2"]}, "std.0 (str) is only in the checkpoint"),
    "what-is-asked-for-is-lacking": ((), {"mean": [1]}, "KeyError: 'std'"),
}


@pytest.mark.parametrize(("fitted", "saved", "seen"), OTHERWISE.values(), ids=OTHERWISE)
def test_statistics_of_another_program_are_no_damage(fitted, saved, seen: str, tmp_path) -> None:
    """Regression: the error called the checkpoint damaged, but the command that it suggested found no damage."""
    state = json.dumps({"scaling": {"pressure": saved}}).encode()
    checkpoint = write_checkpoint(tmp_path / "run/checkpoints", 2, {"task.json": [state]}, META)
    assert checkpoint.damage() is None
    with refusal("checkpoint-of-another-program", seen=seen, fix=f"initial_weights={tmp_path / 'run'}"):
        load_task_state(Scaling(*fitted), checkpoint)


FORGED = [
    *({"sha256": digests} for digests in (["model.bin"], {"../../../etc/passwd": "0"}, {"model.bin": 3}, None)),
    *({"format": [2]}, {"format": 99}, {"config": "seed: 0"}, {"world_size": "2"}, {"world_size": -1}),
]


@pytest.mark.parametrize("changes", FORGED, ids=str)
def test_a_forged_checkpoint_is_a_damaged_one(changes, tmp_path) -> None:
    found = forged(tmp_path, **changes).damage()
    assert "format 99, not 4" in found if changes == {"format": 99} else found


def test_pruning_keeps_the_newest_and_the_best_and_clears_leftovers(tmp_path) -> None:
    for updates, metric in ((1, 0.9), (2, 0.1), (4, 0.5), (4, 0.4), (5, None)):
        written = write(tmp_path, updates, metric, content=str(metric))  # The fourth checkpoint replaces the third.
        assert ((written.path / "model.bin").read_text(), written.damage()) == (str(metric), None)
    (tmp_path / ".update-000000009.77.partial").mkdir()
    prune_checkpoints(tmp_path, keep=2)
    assert kept(tmp_path) == [2, 4, 5]
    assert not list(tmp_path.glob(".update-*"))
    assert selected_checkpoint(tmp_path, pytest.fail).updates == 2


def test_a_write_that_fails_leaves_the_older_checkpoints(tmp_path) -> None:
    write(tmp_path, 1)

    def full():
        yield b"weights"
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_checkpoint(tmp_path, 2, {"model.bin": full()}, META)
    assert kept(tmp_path) == [1]
    assert not list(tmp_path.glob(".update-*")), "a partial checkpoint takes up disk space that other files need"


def test_every_bit_of_the_meta_data_counts(tmp_path) -> None:
    """A flipped bit in a number leaves valid JSON, so only the digest can detect it."""
    checkpoint = write(tmp_path, 1, metric=0.5)
    path = checkpoint.path / "meta.json"
    path.write_text(path.read_text().replace('"metric": 0.5', '"metric": 0.4'))
    assert "its SHA-256 does not match" in str(checkpoint.damage())


def test_a_checkpoint_put_aside_for_one_that_never_came_gets_its_name_back(tmp_path) -> None:
    checkpoint = write(tmp_path, 7)
    checkpoint.path.rename(tmp_path / ".update-000000007.77.replaced")
    assert kept(tmp_path) == []
    recover_replaced(tmp_path)
    assert kept(tmp_path) == [7]
    assert checkpoint.damage() is None

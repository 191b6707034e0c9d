"""`noether checkpoints` lists checkpoints and their damage, and never removes a checkpoint that is needed."""

import errno
import json
from pathlib import Path

import pytest

from noether.checkpoints.format import choose_to_prune, list_checkpoints, selected_checkpoint, write_checkpoint
from noether.checkpoints.table import checkpoints_here, describe_checkpoints
from noether.common.atomic_write import Writer
from noether.config.compose import dump_config, load_config
from noether.runs.folder import RunFolder
from tests.refusal import refusal
from tests.saved import META

# (update, metric) of each checkpoint; update 2 has the best metric.
SAVED = ((1, 0.9), (2, 0.1), (3, 0.5), (4, 0.4), (5, None))


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    run = RunFolder(tmp_path / "run")
    for updates, metric in SAVED:
        write_checkpoint(run.checkpoints, updates, {"w.bin": [b"0" * 2048]}, META | {"metric": metric})
    run.config.write_text(dump_config(load_config(["trainer.keep_checkpoints=2"])))
    return run


def damage(folder: RunFolder, *updates: int) -> None:
    for checkpoint in list_checkpoints(folder.checkpoints):
        if checkpoint.updates in updates:
            (checkpoint.path / "w.bin").write_bytes(b"1" * 2048)


def test_each_is_told_with_its_place_and_what_it_is(folder) -> None:
    rows = describe_checkpoints(folder, verify=True)
    assert [(row.update, row.epoch, row.metric) for row in rows] == [(u, u / 2, m) for u, m in SAVED]
    assert [row.update for row in rows if row.best] == [2]
    assert [row.update for row in rows if row.latest] == [5]
    assert all(row.size > 2048 and row.age_s < 600 and row.damage is None for row in rows)


@pytest.mark.parametrize("damaged", [(), (2,), (2, 4), (1, 2, 3, 4)])
def test_the_best_is_the_one_that_is_evaluated(damaged, folder) -> None:
    """The table marks the checkpoint that evaluation uses, even if only checkpoints without a metric are intact."""
    damage(folder, *damaged)
    best = [row.update for row in describe_checkpoints(folder, verify=True) if row.best]
    assert best == [selected_checkpoint(folder.checkpoints, lambda text: None).updates]


def test_where_higher_values_are_better_the_highest_is_the_best(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for update, metric in ((1, 0.9), (2, 0.98), (3, 0.97)):
        meta = META | {"metric": metric, "better": "higher"}
        write_checkpoint(folder.checkpoints, update, {"w.bin": [b"0"]}, meta)
    rows = describe_checkpoints(folder, verify=False)
    assert [(row.metric, row.best) for row in rows] == [(0.9, False), (0.98, True), (0.97, False)]


PRUNED = {
    "the-newest-and-the-best-stay": ((), 2, [1, 3]),
    "fewer-than-are-kept": ((), 9, []),
    "a-damaged-one-does-not-count": ((5,), 1, [1, 3, 5]),
    "the-best-that-is-intact-stays": ((2,), 1, [1, 2, 3]),
    "the-only-good-one-stays": ((2, 3, 4, 5), 1, [2, 3, 4, 5]),
    "none-is-good-so-none-goes": ((1, 2, 3, 4, 5), 1, []),
}


@pytest.mark.parametrize(("damaged", "keep", "gone"), PRUNED.values(), ids=PRUNED)
def test_what_may_go(folder, damaged, keep, gone) -> None:
    damage(folder, *damaged)
    chosen = choose_to_prune(folder.checkpoints, keep, lambda one: one.damage() is not None)
    assert [one.updates for one in chosen] == gone


def test_a_dry_run_removes_nothing_and_yes_does(folder, noether) -> None:
    shown = noether("checkpoints", str(folder.path), "--prune")
    assert (shown.code, "would remove update-000000001, update-000000003" in shown.out) == (0, True), shown.err
    assert len(list_checkpoints(folder.checkpoints)) == 5
    done = noether("checkpoints", str(folder.path), "--prune", "--yes", "--json")
    assert json.loads(done.out)["removed"] == ["update-000000001", "update-000000003"]
    assert [checkpoint.updates for checkpoint in list_checkpoints(folder.checkpoints)] == [2, 4, 5]


def test_where_none_can_be_removed_the_disk_is_named(folder, monkeypatch) -> None:
    """Regression: the error ended in a traceback."""

    def refuse(self, path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(Writer, "drop", refuse)
    with refusal("disk-refused"):
        checkpoints_here(str(folder.path), verify=False, prune=True, keep="1", yes=True, as_json=False)


def test_a_damaged_one_is_named_and_the_exit_code_says_so(folder, noether) -> None:
    damage(folder, 4)
    listed = noether("checkpoints", str(folder.path))
    assert (listed.code, "not read" in listed.out) == (0, True), listed.out
    done = noether("checkpoints", str(folder.path), "--verify")
    assert (done.code, "w.bin has a different SHA-256 than when it was written" in done.out) == (1, True), done.out


MISTAKES = {"--keep 1": "--prune --keep 1", "--yes": "--prune --keep 1"}
MISTAKES |= {"--prune --keep 0": "--keep 1", "--prune --keep ²": "--keep 1"}


@pytest.mark.parametrize(("words", "way_out"), MISTAKES.items())
def test_mistakes_end_with_2_and_the_line_to_change(folder, noether, words, way_out) -> None:
    done = noether("checkpoints", str(folder.path), *words.split())
    assert (done.code, way_out in done.err) == (2, True), done.err

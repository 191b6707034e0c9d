"""The behaviour of runs on disks that are full, read-only or stalled, or that flip a byte."""

import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import final_hashes
from processes import needs_namespaces, wait_for
from sharing import in_every_push

from noether.checkpoints.format import list_checkpoints, selected_checkpoint
from noether.runs.folder import RunFolder
from noether.runs.lease import read_attempts

from .hosts import LINES, OWN, PATHS, Host, learned_in_peace, updates_made

WIDE = ("model.width=4096",)  # Makes a checkpoint of half a megabyte.


class HostOfDisks(Host):
    """A host with private mounts; `seen` returns the path through which the test sees a file of the host."""

    def seen(self, path: Path) -> Path:
        return Path(f"/proc/{self.holder.pid}/root{path}")

    def small_disk(self, disk: Path) -> RunFolder:
        """Mount a disk of 8 MiB at `disk`; return the folder of the run on it, as the test sees it."""
        disk.mkdir()
        self.run("mount", "-t", "tmpfs", "-o", "size=8m", "none", str(disk))
        return RunFolder(self.seen(disk / "run"))

    def begin(self, disk: Path, log: Path) -> tuple[RunFolder, subprocess.Popen[bytes]]:
        """Start a run on a small disk and wait for its first checkpoint; return the run's folder and process."""
        folder = self.small_disk(disk)
        process = self.train(log, *WIDE, f"output_path={disk}", "run_id=run")
        wait_for("a checkpoint", lambda: list_checkpoints(folder.checkpoints))
        return folder, process

    def train(self, log: Path, *overrides: str) -> subprocess.Popen[bytes]:
        words = ["-m", "noether", "train", "--hp", str(LINES), "resume=auto", *overrides]
        return self.start(self.inside(sys.executable, *words), log)


@pytest.fixture
def host(environ) -> Iterator[HostOfDisks]:
    needs_namespaces("mount a small disk", "--mount", "true")
    host = HostOfDisks("n9", {**environ, **PATHS, "PAUSE_S": "0.04"}, "--mount")
    yield host
    host.end()


@pytest.fixture(scope="module")
def undisturbed(noether, tmp_path_factory) -> dict[str, str]:
    return learned_in_peace(noether, tmp_path_factory.mktemp("undisturbed"), *WIDE)


def fill(path: Path, but: int = 0) -> None:
    """Fill the disk by a file at `path`, leaving `but` KiB free."""
    kept = path.with_name("kept")
    kept.write_bytes(b"0" * 1024 * but)
    with path.open("wb", buffering=0) as file:
        size = 1 << 20
        while size:
            try:
                if file.write(b"0" * size) < size:
                    size //= 2
            except OSError:
                size //= 2
    kept.unlink()


@pytest.mark.slow
def test_on_a_full_disk_training_goes_on_and_what_was_held_back_comes_when_there_is_room(
    host, undisturbed, tmp_path
) -> None:
    disk, log = tmp_path / "disk", tmp_path / "log"
    folder, process = host.begin(disk, log)
    fill(host.seen(disk / "rest"))
    wait_for("the warning", lambda: "No space left on device; training continues" in log.read_text())
    assert process.poll() is None
    host.seen(disk / "rest").unlink()
    assert process.wait(90) == 0, log.read_text()
    assert final_hashes(folder) == undisturbed
    assert updates_made(folder) == list(range(1, 61)), "rows were lost, doubled or cut"


@pytest.mark.slow
def test_on_a_disk_that_stays_full_the_end_says_what_to_do_and_that_works(host, undisturbed, tmp_path) -> None:
    disk, log = tmp_path / "disk", tmp_path / "log"
    folder, process = host.begin(disk, log)
    good = list_checkpoints(folder.checkpoints)[-1]
    fill(host.seen(disk / "rest"))
    assert process.wait(120) == 1, log.read_text()
    said = log.read_text()
    assert "the last checkpoint cannot be written" in said
    assert f"free disk space, then noether train resume={disk}/run; it continues after update" in said
    assert "Traceback" not in said
    assert list_checkpoints(folder.checkpoints)[-1].updates >= good.updates
    host.seen(disk / "rest").unlink()
    again = host.train(log, *WIDE, f"output_path={disk}", "run_id=run")
    assert again.wait(120) == 0, log.read_text()
    assert final_hashes(folder) == undisturbed
    assert updates_made(folder) == list(range(1, 61))


@pytest.mark.slow
@pytest.mark.parametrize(
    "room", in_every_push({"no-room": 0, "for-the-fence-and-the-plan": 8, "for-all-but-the-history": 24}, "no-room")
)
def test_a_disk_that_is_full_at_the_start_is_told_in_words(host, room, tmp_path) -> None:
    disk, log = tmp_path / "disk", tmp_path / "log"
    host.small_disk(disk)
    fill(host.seen(disk / "rest"), but=room)
    assert host.train(log, f"output_path={disk}", "run_id=run").wait(90) == 2, log.read_text()
    said = log.read_text()
    assert "cannot write to" in said
    assert "seen      No space left on device" in said
    assert "fix       free disk space" in said
    assert "Traceback" not in said


@pytest.mark.nightly
def test_a_run_that_goes_on_where_the_disk_refuses_is_as_it_was(host, tmp_path) -> None:
    """A full disk and a read-only disk each refuse the run with a message, and the run's files do not change."""
    disk, log = tmp_path / "disk", tmp_path / "log"
    folder, words = host.small_disk(disk), (f"output_path={disk}", "run_id=run")
    assert host.train(log, *words, "trainer.max_updates=4").wait(90) == 0, log.read_text()
    before = [path.read_bytes() for path in (folder.config, folder.metrics, folder.plan, folder.result)]
    fill(host.seen(disk / "rest"))
    assert host.train(log, *words, "trainer.max_updates=8").wait(90) == 2, log.read_text()
    assert "seen      No space left on device" in log.read_text()
    host.seen(disk / "rest").unlink()
    host.run("mount", "-o", "remount,ro", str(disk))
    assert host.train(log, *words, "trainer.max_updates=8").wait(90) == 2, log.read_text()
    assert "seen      Read-only file system" in log.read_text()
    assert "Traceback" not in log.read_text()
    host.run("mount", "-o", "remount,rw", str(disk))
    assert [path.read_bytes() for path in (folder.config, folder.metrics, folder.plan, folder.result)] == before
    assert host.train(log, *words, "trainer.max_updates=8").wait(90) == 0, log.read_text()
    assert updates_made(folder) == list(range(1, 9))


@pytest.mark.nightly
def test_a_result_that_the_disk_refuses_is_told_in_words_and_made_at_the_next_start(host, tmp_path) -> None:
    disk, log = tmp_path / "disk", tmp_path / "log"
    folder, words = host.small_disk(disk), (f"output_path={disk}", "run_id=run", "trainer.max_updates=4")
    host.environ["PAUSE_EVALUATION_S"] = "0.3"  # For each of the eight batches of the test split.
    process = host.train(log, *words)
    wait_for("the last checkpoint", lambda: [one.updates for one in list_checkpoints(folder.checkpoints)] == [4])
    fill(host.seen(disk / "rest"))
    assert process.wait(90) == 1, log.read_text()
    said = log.read_text()
    assert "the result of the run cannot be written" in said
    assert "training is complete and saved" in said
    assert "only the evaluation is repeated" in said
    assert "Traceback" not in said
    host.seen(disk / "rest").unlink()
    assert host.train(log, *words).wait(90) == 0, log.read_text()
    assert json.loads(folder.result.read_text())["updates"] == 4
    assert [row.outcome for row in read_attempts(folder)][-1] == "done"


@pytest.mark.nightly
def test_on_a_disk_that_stalls_both_ranks_train_on_and_what_is_selected_is_on_the_disk(host, tmp_path) -> None:
    """The file system is frozen: it blocks every writer until it is thawed, like an unresponsive file server."""
    disk, run, log = tmp_path / "image", tmp_path / "disk" / "run", tmp_path / "log"
    (run / "checkpoints").mkdir(parents=True)
    with disk.open("wb") as file:
        file.truncate(32 << 20)
    try:
        host.run("mkfs.ext4", "-q", str(disk))
        host.run("mount", "-o", "loop", str(disk), str(run / "checkpoints"))
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system in a file can be made and mounted here: {error}")
    folder = RunFolder(host.seen(run))
    # Evaluate only at the end, because an evaluation saves the best checkpoint, which would wait for the disk.
    process = host.train(log, *WIDE, "devices=2", f"output_path={run.parent}", "run_id=run")
    wait_for("a checkpoint", lambda: list_checkpoints(folder.checkpoints))
    host.run("fsfreeze", "--freeze", str(run / "checkpoints"))
    try:
        wait_for("two skipped", lambda: log.read_text().count(" is skipped: that of update ") > 1)
        assert process.poll() is None
    finally:
        host.run("fsfreeze", "--unfreeze", str(run / "checkpoints"))
    assert process.wait(120) == 0, log.read_text()
    assert updates_made(folder) == list(range(1, 61))
    saved = list_checkpoints(folder.checkpoints)
    best = json.loads((saved[-1].path / "state.json").read_text())["progress"]["best_metric"]
    assert best == min(one.meta()["metric"] for one in saved if one.meta()["metric"] is not None)
    selected = selected_checkpoint(folder.checkpoints, pytest.fail).path.name
    assert json.loads(folder.result.read_text())["checkpoint"] == selected
    assert [one.damage() for one in saved] == [None] * len(saved)


@pytest.mark.slow
def test_a_flipped_byte_in_a_checkpoint_is_seen_and_the_one_before_is_taken(noether, undisturbed, tmp_path) -> None:
    words = ["--hp", str(LINES), f"output_path={tmp_path}", "run_id=run", "resume=auto", *WIDE]
    assert noether("train", *words, cwd=OWN, **PATHS).code == 0
    folder = RunFolder(tmp_path / "run")
    before, newest = list_checkpoints(folder.checkpoints)
    rng, files = random.Random(4), {path.name for path in newest.path.iterdir()}
    assert len(files) == 7
    assert files == {*newest.meta()["sha256"], "meta.json"}, "every file has a digest"
    flip_a_byte(newest.path / "optimizer.safetensors", rng)
    folder.result.unlink()
    again = noether("train", *words, cwd=OWN, **PATHS, code=0)
    assert f"{newest.path.name} is skipped: optimizer.safetensors has a different SHA-256" in again.out
    assert f"after update {before.updates}" in again.out
    assert final_hashes(folder) == undisturbed
    for checkpoint in list_checkpoints(folder.checkpoints):
        flip_a_byte(checkpoint.path / "model.safetensors", rng)
    refused = noether("train", *words, cwd=OWN, **PATHS)
    assert (refused.code, "has no intact checkpoint" in refused.err) == (2, True), refused.err
    assert len(list_checkpoints(folder.checkpoints)) == 2, "nothing is buried that may be mended"


def flip_a_byte(path: Path, rng: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[rng.randrange(len(content))] ^= 1 << rng.randrange(7)
    path.write_bytes(content)

"""A host reads and hashes a checkpoint only once, although different code chooses, checks and loads it."""

import pickle
from collections import Counter
from pathlib import Path

import pytest

from noether.checkpoints.format import CheckpointFolder, DamagedCheckpoint, list_checkpoints, write_checkpoint
from tests.saved import META

COUNTING = """
import hashlib, os

def counted(file, *rest, plain=hashlib.file_digest):
    with open(os.environ["HASHED"], "a") as log:
        log.write(os.readlink(f"/proc/self/fd/{file.fileno()}") + "\\n")
    return plain(file, *rest)

hashlib.file_digest = counted
"""


@pytest.mark.slow
def test_each_file_is_hashed_once_by_a_resume_an_evaluation_and_weights_to_begin_with(train, noether, tmp_path) -> None:
    """Reads are counted in all processes of a command. Regression: an evaluation hashed some files three times."""
    common = ("devices=2", "trainer.evaluate_every=null", "schedule=constant")
    checkpoint = list_checkpoints(train("run", *common, "trainer.max_updates=4").checkpoints)[-1]
    (tmp_path / "sitecustomize.py").write_text(COUNTING)
    log = tmp_path / "hashed"
    run, begun = str(checkpoint.path.parents[1]), (f"output_path={tmp_path}", "run_id=begun", "initial_weights={}")
    tiny = str(Path(__file__).parents[1] / "tiny.yaml")
    for words in (
        ("evaluate", str(checkpoint.path)),
        ("train", "--hp", tiny, *common, "trainer.max_updates=1", *begun[:2], begun[2].format(run)),
        ("train", f"resume={run}", "trainer.max_updates=6"),
    ):
        log.unlink(missing_ok=True)
        # PYTHONNOUSERSITE forces a fresh process, which imports sitecustomize.
        noether(*words, PYTHONPATH=str(tmp_path), PYTHONNOUSERSITE="1", HASHED=str(log), code=0)
        hashed = Counter(Path(line) for line in log.read_text().splitlines())
        ours = {path.name: count for path, count in hashed.items() if path.parent == checkpoint.path}
        assert ours == dict.fromkeys(checkpoint.meta()["sha256"], 1), words


def test_what_was_verified_is_known_in_another_process_and_read_again_where_it_has_changed(
    tmp_path, monkeypatch
) -> None:
    content = b"weights"
    here = write_checkpoint(tmp_path, 1, {"model.safetensors": [content]}, META)
    assert here.damage() is None
    there: CheckpointFolder = pickle.loads(pickle.dumps(here))
    with monkeypatch.context() as patched:
        for reader in ("file_digest", "read_plain"):
            patched.setattr(f"noether.checkpoints.format.{reader}", lambda *_: pytest.fail("read again"))
        assert there.damage() is None
    with pytest.raises(DamagedCheckpoint), there.loading("model.safetensors") as path:
        path.write_bytes(content[::-1])
    path.write_bytes(content)
    assert there.damage() is None, "the original content must count as intact, whoever wrote it"
    monkeypatch.setattr("noether.common.safe_open.boot_id", lambda: "another host")
    path.write_bytes(content[::-1])
    assert there.damage() is not None

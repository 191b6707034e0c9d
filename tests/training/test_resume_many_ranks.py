"""From three ranks on, the order in which gradients are added matters: a resumed run must add them as before."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import REPOSITORY, TINY, final_hashes
from processes import free_port
from safetensors.torch import load_file

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder

pytestmark = pytest.mark.slow
# A constant rate: the length of the run, which is cut short by `max_updates`, changes nothing else.
COMMON = ("trainer.ema_decay=0.9", "optimizer.learning_rate=1e-2", "schedule=constant", "trainer.evaluate_every=null")
CUT_AT = 3


@pytest.mark.parametrize(
    ("ranks", "batch", "options"),
    [
        pytest.param(3, 12, (), id="3"),
        pytest.param(4, 12, (), id="4", marks=pytest.mark.nightly),
        pytest.param(4, 12, ("optimizer=muon", "trainer.precision=fp16"), id="4-muon-fp16", marks=pytest.mark.nightly),
        pytest.param(
            4,
            12,
            ("trainer.max_batch_size=1", "num_workers=2"),
            id="4-accumulated-loader-workers",
            marks=pytest.mark.nightly,
        ),
    ],
)
def test_a_run_cut_short_goes_on_bit_for_bit(ranks, batch, options, train) -> None:
    common = (f"devices={ranks}", f"trainer.effective_batch_size={batch}", *COMMON, *options)
    undisturbed = train("undisturbed", *common)
    train("cut", *common, f"trainer.max_updates={CUT_AT}")
    resumed = train("cut", *common, "resume=auto")
    assert final_hashes(resumed) == final_hashes(undisturbed)


@pytest.mark.nightly
def test_eight_ranks_of_two_launchers_go_on_bit_for_bit(environ, tmp_path) -> None:
    undisturbed = train_on_two_launchers("undisturbed", environ, tmp_path)
    train_on_two_launchers("cut", environ, tmp_path, f"trainer.max_updates={CUT_AT}")
    resumed = train_on_two_launchers("cut", environ, tmp_path, "resume=auto")
    assert final_hashes(resumed) == final_hashes(undisturbed)


def test_another_number_of_ranks_goes_on_with_the_same_samples_to_rounding(train) -> None:
    common = ("trainer.effective_batch_size=12", "trainer.precision=float64", "optimizer=sgd", "schedule=constant")
    undisturbed = train("undisturbed", "devices=4", *common)
    train("cut", "devices=3", *common, f"trainer.max_updates={CUT_AT}")
    resumed = train("cut", "devices=4", *common, "resume=auto")
    expected, found = (last_weights(folder) for folder in (undisturbed, resumed))
    assert max(float((expected[name] - found[name]).abs().max()) for name in expected) < 1e-12


def last_weights(folder: RunFolder) -> dict[str, torch.Tensor]:
    return load_file(list_checkpoints(folder.checkpoints)[-1].path / "model.safetensors")


def train_on_two_launchers(name: str, environ: dict[str, str], output: Path, *more: str) -> RunFolder:
    """Trains on eight ranks: two launchers of four workers each, as on two machines."""
    words = ["train", "--hp", str(TINY), f"output_path={output}", f"run_id={name}", *COMMON, *more]
    words += [
        "trainer.effective_batch_size=16",
        "devices=4",
        "nodes=2",
        "master_addr=127.0.0.1",
        f"master_port={free_port()}",
    ]
    launchers = [
        subprocess.Popen(
            [sys.executable, "-m", "noether", *words, f"node_rank={rank}"],
            cwd=REPOSITORY,
            env={**environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in (0, 1)
    ]
    try:
        ends = [launcher.communicate(timeout=170) for launcher in launchers]
    finally:
        for launcher in launchers:
            launcher.kill()
    assert [launcher.returncode for launcher in launchers] == [0, 0], ends
    return RunFolder(output / name)

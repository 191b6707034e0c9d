"""A model that misbehaves on one rank in one update, and the settings to train it."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from noether.physics.models.upt import UPT

MODEL = "misbehaving.Misbehaving"
# The run is so long that the tested failure ends it, not the last update.
WORDS = (
    *("trainer.max_updates=4000", "trainer.evaluate_every=null", "trainer.checkpoint_every=null", "num_workers=1"),
    *("distributed.timeout_s=5", "distributed.heartbeat_timeout_s=6", "distributed.init_timeout_s=60"),
    # A new `model.kind` discards the model's options in the file, so the options of the tiny model are repeated.
    *(f"model.kind={MODEL}", "model.dim=32", "model.heads=2", "model.encoder_depth=1", "model.decoder_depth=1"),
    *("model.supernodes=8", "model.radius=200.0"),
)


class Misbehaving(UPT):
    """The tiny model, which misbehaves in the training forward pass number `update` of rank `rank`.

    Args:
        how: raise, allocate (too much memory), sys.exit, os._exit, sleep, or the name of a signal that the rank sends
            itself.
        rank: the rank within the run.
        update: the number of the forward pass, counted from 1.
        mark: a file that is created when the model misbehaves.
        options: the options of the tiny model.
    """

    def __init__(self, *, how: str, rank: int, update: int = 3, mark: str = "", **options: Any) -> None:
        super().__init__(**options)
        # With more than two ranks, two passes over the first batch settle DDP's buckets before the first update.
        settling = 2 if int(os.environ.get("WORLD_SIZE", "1")) > 2 else 0
        here = rank == int(os.environ.get("RANK", "0"))
        self.how, self.left, self.mark = how, update + settling if here else 0, mark

    def forward(self, batch: Any) -> Any:
        """Predict, or misbehave."""
        if self.training and self.left:
            self.left -= 1
            if not self.left:
                self.misbehave()
        return super().forward(batch)

    def misbehave(self) -> None:
        if self.mark:
            Path(self.mark).touch()
        if self.how == "raise":
            raise ValueError("boom")
        if self.how == "allocate":
            torch.empty(2**50)
        if self.how == "sys.exit":
            sys.exit(0)
        if self.how == "os._exit":
            os._exit(0)
        if self.how == "sleep":
            time.sleep(600)
        if self.how.startswith("SIG"):
            os.kill(os.getpid(), signal.Signals[self.how])


def misbehave(how: str, rank: int, mark: Path | None = None) -> list[str]:
    """Return the settings of a run in which one rank misbehaves."""
    marked = [f"+model.mark={mark}"] if mark else []
    return [*WORDS, f"+model.how={how}", f"+model.rank={rank}", *marked]


def processes_of(text: str) -> dict[int, str]:
    """Return the command lines, by pid, of the processes that have `text` in their arguments or environment."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            try:
                command, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            except OSError:
                continue
            if text.encode() in command + environ:
                found[int(folder.name)] = command.replace(b"\0", b" ").decode(errors="replace")
    return found

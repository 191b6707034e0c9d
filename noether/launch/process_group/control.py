"""What the ranks tell each other beside the gradients: objects, and that all have come this far, over rank 0's store.

No mesh: each rank has the one connection to the store that it needs anyway. What travels is signed with a secret of the
run, so that a stranger who reaches the store can disturb a run, and cannot make it read anything of his.
"""

import contextlib
import hashlib
import hmac
import pickle
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from noether.common.errors import RanksLate

SLICE_S = 5.0
"""How long one wait keeps the connection to the store, which NCCL's own threads use as well."""


class ForgedMessage(Exception):
    """Something in the store was not written by a rank of this run."""


class ControlChannel:
    """The ranks' store as a channel for decisions. Every rank calls the same methods in the same order.

    `limit_s` is how long a rank waits for the others.
    """

    def __init__(self, store: dist.Store, rank: int, world_size: int, secret: str) -> None:
        self._store = dist.PrefixStore("noether", store)
        self._rank, self._world_size = rank, world_size
        self._secret = secret.encode()
        self._count = 0
        self.limit_s = 0.0

    def from_first(self, value: Any) -> Any:
        """Returns rank 0's value on every rank."""
        key = self._next("object")
        if self._rank == 0:
            self._put(key, value)
            return value
        self._wait([key])
        value = self._verified(key, self._store.get(key))
        with contextlib.suppress(dist.DistError):  # Rank 0 may be gone: what it said may have been its last word.
            if self._store.add(f"{key}/read", 1) == self._world_size - 1:
                self._delete(key, f"{key}/read")
        return value

    def gather(self, value: Any) -> list[Any]:
        """Returns every rank's value, in the order of ranks, on rank 0; an empty list on the others, at once."""
        key = self._next("gather")
        if self._rank > 0:
            own = f"{key}/{self._rank}"
            self._put(own, value)
            return []
        keys = [f"{key}/{rank}" for rank in range(1, self._world_size)]
        self._wait(keys)
        texts = self._store.multi_get(keys)
        self._delete(*keys)
        return [value, *(self._verified(name, text) for name, text in zip(keys, texts, strict=True))]

    def barrier(self) -> None:
        """Waits for every rank."""
        key = self._next("barrier")
        if self._store.add(f"{key}/here", 1) == self._world_size:
            self._store.set(f"{key}/all", "")
        self._wait([f"{key}/all"])
        if self._store.add(f"{key}/left", 1) == self._world_size:
            self._delete(f"{key}/here", f"{key}/all", f"{key}/left")

    def leave(self) -> None:
        """Is the last call. Rank 0, which serves the store, returns when no other needs it any more."""
        if self._rank == 0:
            self._wait(["left"])
        elif self._store.add("leaving", 1) == self._world_size - 1:
            self._store.set("left", "")

    def _next(self, what: str) -> str:
        self._count += 1
        return f"{self._count}/{what}"

    def _wait(self, keys: Sequence[str]) -> None:
        """Waits until all keys are there.

        Raises:
            RanksLate: that took longer than `limit_s`.
        """
        deadline = time.monotonic() + self.limit_s
        while (left := deadline - time.monotonic()) > 0:
            try:
                self._store.wait(list(keys), timedelta(seconds=min(SLICE_S, max(left, 0.001))))
            except dist.DistStoreError:
                continue
            return
        raise RanksLate(self.limit_s)

    def _delete(self, *keys: str) -> None:
        for key in keys:
            self._store.delete_key(key)

    def _put(self, key: str, value: Any) -> None:
        text = pickle.dumps(value)
        self._store.set(key, self._signature(key, text) + text)  # type: ignore[arg-type]  # It takes bytes as well.

    def _verified(self, key: str, text: bytes) -> Any:
        signature, text = text[: hashlib.sha256().digest_size], text[hashlib.sha256().digest_size :]
        if not hmac.compare_digest(signature, self._signature(key, text)):
            raise ForgedMessage(f"what the ranks' store holds as {key} was not written by a rank of this run")
        return pickle.loads(text)

    def _signature(self, key: str, text: bytes) -> bytes:
        return hmac.new(self._secret, key.encode() + b"\0" + text, hashlib.sha256).digest()

"""Checkpoints on disk: written whole or not at all, verified before use. No torch here.

A checkpoint is a folder `update-000001234/` of plain files (safetensors and JSON, nothing that runs code
when it is read). Its `meta.json` names the format's version, each file's SHA-256 and its own; it is written last,
into a folder of another name, which is then renamed.
"""

import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from noether.common.atomic_write import ASIDE, UNFENCED, Writer, flush, say_if_forbidden
from noether.common.errors import RequestError
from noether.common.safe_open import StampedFile, create_plain, open_plain, read_plain, stamped
from noether.runs.folder import CHECKPOINT, UPDATE, RunFolder, checkpoint_paths
from noether.runs.records import is_count, mapping, number, parse_object, read_metrics

FORMAT = 4
"""What meta.json says; checkpoints of 2 and 3, which no release wrote, are refused like any other."""

META = "meta.json"
WEIGHTS = {"ema": "ema.safetensors", "raw": "model.safetensors"}
"""The file of each kind of weights; a run is evaluated with the first that its checkpoints have."""
_COUNTS = ("world_size", "effective_batch_size", "micro_batch_size", "updates_per_epoch")
_PLAIN_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

Warn = Callable[[str], None]


class DamagedCheckpoint(RequestError):
    """A checkpoint cannot be used: a file is not as it was written, or it is another program's."""


@dataclass(frozen=True)
class CheckpointFolder:
    """One checkpoint on disk. Whatever is read from it is verified first.

    known: the files that were read, with the content of meta.json and the SHA-256 of the others. It is handed on with
        the checkpoint, to other processes too, so that each host reads each file once; one that has changed since is
        read again.
    """

    path: Path
    known: dict[str, tuple[StampedFile, Any]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def updates(self) -> int:
        """Updates that the run had made."""
        return int(self.path.name.removeprefix(UPDATE))

    def meta(self) -> dict[str, Any]:
        """Return meta.json. DamagedCheckpoint: it cannot be read, or is not as it was written."""
        return dict(self._once(META, self._checked_meta)[1])

    def _once(self, name: str, read: Callable[[Path], Any]) -> tuple[StampedFile, Any]:
        """Return one of its files and what `read` makes of it, which is called where the file is not known yet."""
        if name not in self.known or not self.known[name][0].is_unchanged():
            try:
                before = stamped(self.path / name)  # First: a change while it is read shows later.
                self.known[name] = before, read(before.path)
            except (OSError, ValueError) as error:
                seen = getattr(error, "strerror", None) or error
                raise self._damaged(f"{name} cannot be read: {seen}") from None
        return self.known[name]

    def _checked_meta(self, path: Path) -> dict[str, Any]:
        meta = parse_object(read_plain(path))
        if meta.get("meta_sha256") != _meta_digest(meta):
            raise ValueError("another SHA-256 than when it was written")
        if meta.get("format") != FORMAT:
            raise self._of_another_program(f"{META} has format {meta.get('format')!r:.40}, not {FORMAT}", meta)
        digests = meta.get("sha256")
        if not isinstance(digests, dict) or not all(_PLAIN_FILE.fullmatch(name) for name in digests):
            raise ValueError("sha256 does not name the files of a checkpoint")
        if CHECKPOINT.fullmatch(self.path.name) and meta.get("updates") != self.updates:
            raise ValueError(f"it says update {meta.get('updates')}: the folder was renamed or copied")
        counts = [meta.get(name) for name in _COUNTS]
        if not all(is_count(count) and count for count in counts) or not isinstance(meta.get("config"), dict):
            raise ValueError(f"{', '.join(_COUNTS)} or config are not what a run writes")
        return meta

    def damage(self, whole: bool = True) -> str | None:
        """Return what is wrong with the checkpoint, or None where every file is as it was written.

        whole: False reads meta.json alone, not the gigabytes that it names.
        """
        try:
            for name in self.meta()["sha256"]:
                if whole:
                    self.verified(name)
        except DamagedCheckpoint as damage:
            return damage.seen
        return None

    def check(self, fix: str = "", *, whole: bool = True) -> None:
        """Raise DamagedCheckpoint, with the line to write instead, where `damage` finds any."""
        if (damage := self.damage(whole)) is not None:
            raise self._damaged(damage, fix)

    def verified(self, name: str) -> StampedFile:
        """Return one of its files, which is as it was written. DamagedCheckpoint: it is not, or is not named."""
        expected = self.meta()["sha256"].get(name)
        if expected is None:
            raise self._damaged(f"{META} does not name {name}")

        def digest(path: Path) -> str:
            with open_plain(path) as opened:
                return file_digest(opened, "sha256").hexdigest()

        file, found = self._once(name, digest)
        if found != expected:
            raise self._damaged(f"{name} has another SHA-256 than when it was written")
        return file

    @property
    def weights(self) -> list[str]:
        """The kinds of weights that it holds, the selected first. DamagedCheckpoint where meta.json cannot be read."""
        return [kind for kind, file in WEIGHTS.items() if file in self.meta()["sha256"]]

    @contextmanager
    def loading(self, name: str) -> Iterator[Path]:
        """Give the verified path of a file whose content is about to be put into use.

        DamagedCheckpoint: it is not as it was written, or its content is not what a run of this program writes.
        """
        try:
            yield self.verified(name).path
        except RequestError:
            raise
        except Exception as error:
            self.verified(name)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._of_another_program(f"{name}: {text:.200}", self.meta()) from None
        self.verified(name)  # Where it changed on the way, what was loaded is not what was verified.

    def _of_another_program(self, seen: str, meta: Mapping[str, Any]) -> DamagedCheckpoint:
        made, weights = mapping(meta, "provenance"), shlex.quote(f"initial_weights={self.path.parent.parent}")
        return DamagedCheckpoint(
            "checkpoint-of-another-program",
            f"checkpoint {self.path} is intact, but of another program: noether or your own code has changed since",
            seen=f"{seen}\nwritten by noether {made.get('noether')}, revision {made.get('git_revision')}",
            expected="what this program writes in a run of these settings",
            fix=f"resume=null run_id=ANOTHER_NAME {weights}      (a run of its own, from the weights of this one)",
        )

    def _damaged(self, seen: str, fix: str = "") -> DamagedCheckpoint:
        fix = fix or f"noether checkpoints {self.path.parent.parent} --verify      (shows which are intact)"
        summary = f"checkpoint {self.path} is damaged"
        return DamagedCheckpoint(
            "checkpoint-damaged", summary, seen=seen, expected="files as they were written", fix=fix
        )


def list_checkpoints(folder: Path) -> list[CheckpointFolder]:
    """Return a run's checkpoints, oldest first, damaged ones among them."""
    return [CheckpointFolder(path) for path in checkpoint_paths(folder)]


def newest_intact(folder: Path, warn: Warn = lambda text: None, *, whole: bool = True) -> CheckpointFolder | None:
    """Return the newest checkpoint that verifies; damaged ones are named to `warn` and passed over.

    whole: False reads meta.json alone, for whoever leaves it to another process to verify the files.
    """
    return _first_intact(reversed(list_checkpoints(folder)), warn, whole=whole)


def _first_intact(checkpoints: Iterable[CheckpointFolder], warn: Warn, *, whole: bool) -> CheckpointFolder | None:
    for checkpoint in checkpoints:
        damage = checkpoint.damage(whole)
        if damage is None:
            return checkpoint
        warn(f"checkpoint {checkpoint.path.name} is skipped: {damage}")
    return None


def no_intact_checkpoint(folder: Path) -> RequestError:
    """Return the refusal of a run of which no checkpoint is intact."""
    found = list_checkpoints(folder)
    seen = f"{len(found)} in {folder}, none of them intact: {found[-1].damage()}" if found else f"none in {folder}"
    return RequestError(
        "no-intact-checkpoint",
        f"{folder.parent} has no intact checkpoint",
        seen=seen,
        expected="a checkpoint whose files are as they were written",
        fix=f"noether checkpoints {folder.parent} --verify      (or a new run: resume=null run_id=ANOTHER_NAME)",
    )


def _loss(row: Mapping[str, Any], better: Any) -> float:
    """A row's selection metric, in the sense that lower is better; infinite where it has none."""
    metric = number(row, "metric")
    return math.inf if metric is None else -metric if better == "higher" else metric


def ranked(checkpoints: Iterable[CheckpointFolder]) -> list[CheckpointFolder]:
    """Return the best first, the earlier of two equals; then those without a metric, the newest first.

    Before them come those that cannot be read: each may have been the best.
    """

    def rank(checkpoint: CheckpointFolder) -> tuple[float, int]:
        try:
            meta = checkpoint.meta()
        except DamagedCheckpoint:
            return -math.inf, checkpoint.updates
        loss = _loss(meta, meta.get("better"))
        return loss, checkpoint.updates if math.isfinite(loss) else -checkpoint.updates

    return sorted(checkpoints, key=rank)


def newest_update(folder: Path) -> int:
    """Return the update of the newest checkpoint in a folder; 0 where there is none."""
    return max((checkpoint.updates for checkpoint in list_checkpoints(folder)), default=0)


def selected_checkpoint(folder: Path, warn: Warn, *, whole: bool = True) -> CheckpointFolder:
    """Return the checkpoint that stands for a run: the best on the validation split, else the newest.

    Damaged ones are named to `warn` and passed over, and better ones that are gone are named too. `whole` as for
    `newest_intact`. RequestError: the run has no intact checkpoint.
    """
    ordered = ranked(list_checkpoints(folder))
    chosen = _first_intact(ordered, warn, whole=whole)
    if chosen is None:
        raise no_intact_checkpoint(folder)
    there = {checkpoint.updates for checkpoint in ordered}
    better = chosen.meta().get("better")
    for row in read_metrics(RunFolder(folder.parent).metrics):
        is_gone = row["kind"] == "checkpoint" and row["update"] not in there
        if is_gone and _loss(row, better) < _loss(chosen.meta(), better):
            warn(f"checkpoint {UPDATE}{row['update']:09d} is missing; it was better than {chosen.path.name}")
    return chosen


def write_checkpoint(
    folder: Path,
    updates: int,
    files: Mapping[str, Iterable[bytes | memoryview]],
    meta: dict[str, Any],
    *,
    writer: Writer = UNFENCED,
    before_rename: Callable[[], None] = lambda: None,
) -> CheckpointFolder:
    """Write one checkpoint: every file, then meta.json, each flushed to the disk, then the rename.

    files: the content of each by its name, piece by piece. meta: further content of meta.json.
    before_rename: called when all is on the disk and nothing has its name yet. What it or a piece raises, OSError of a
        disk that refuses, or NoetherError where `writer` may not write any more leaves the folder as it was.
    """
    final = folder / f"{UPDATE}{updates:09d}"
    is_first = not folder.exists()
    partial = writer.partial(final)
    if is_first:
        flush(folder.parent)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        digests = {name: _write_flushed(partial / name, parts) for name, parts in files.items()}
        content = {"format": FORMAT, "updates": updates, **meta, "sha256": digests}
        content["meta_sha256"] = _meta_digest(content)
        _write_flushed(partial / META, [json.dumps(content, indent=2).encode()])
        flush(partial)
        before_rename()
        # The same state may have been written before with less knowledge (an evaluation that was cut short).
        writer.publish(partial, final)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # On a full disk its bytes are what others wait for.
        if isinstance(error, OSError):
            say_if_forbidden(writer)
        raise
    flush(folder)
    return CheckpointFolder(final)


def recover_replaced(folder: Path) -> None:
    """Give a checkpoint its name back that was put aside for a new one which then never came."""
    for old in [*folder.glob(f".{UPDATE}*{ASIDE}"), *folder.glob(f".attempt-*/.{UPDATE}*{ASIDE}")]:
        final = folder / old.name.removeprefix(".").partition(".")[0]
        if not final.exists() and (old / META).is_file():
            old.rename(final)


def _write_flushed(path: Path, parts: Iterable[bytes | memoryview]) -> str:
    """Write a file from its parts, waits until the disk has it, and return the SHA-256 of what was written."""
    digest = sha256()
    with create_plain(path) as file:
        for part in parts:
            digest.update(part)
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def _meta_digest(meta: dict[str, Any]) -> str:
    own = {key: value for key, value in meta.items() if key != "meta_sha256"}
    return sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()


def prune_checkpoints(folder: Path, keep: int, writer: Writer = UNFENCED) -> None:
    """Remove what `choose_to_prune` chooses by the checkpoints' meta.json alone, and leftovers of broken writes."""
    for checkpoint in choose_to_prune(folder, keep, lambda one: one.damage(whole=False) is not None):
        writer.drop(checkpoint.path)
    remove_leftovers(folder)


def choose_to_prune(folder: Path, keep: int, is_damaged: Callable[[CheckpointFolder], bool]) -> list[CheckpointFolder]:
    """Return the checkpoints that may go: all but the newest `keep` that are intact, and the best of these.

    Where none is intact, none may go: one may still be repaired.
    """
    found = list_checkpoints(folder)
    intact = [one for one in found if not is_damaged(one)]
    kept = [*intact[-keep:], *ranked(intact)[:1]]
    return [one for one in found if one not in kept] if intact else []


def remove_leftovers(folder: Path) -> None:
    """Remove what interrupted writes and removals have left; only the folder's one writer may call it."""
    for leftover in folder.glob(f".{UPDATE}*"):
        shutil.rmtree(leftover, ignore_errors=True)

"""Checkpoints on disk: written atomically, verified before use. No torch here.

A checkpoint is a folder `update-000001234/` of plain files (safetensors and JSON, which run no code when read).
`meta.json` contains the format version, the SHA-256 of every other file, and the SHA-256 of its own other content.
All files are written to a temporary folder, `meta.json` last; then the folder is renamed.
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
"""Format version in meta.json. Checkpoints of other versions are refused; no release wrote versions 2 and 3."""

META = "meta.json"
WEIGHTS = {"ema": "ema.safetensors", "raw": "model.safetensors"}
"""The file of each kind of weights. A run is evaluated with the first of these kinds that its checkpoints contain."""
_COUNTS = ("world_size", "effective_batch_size", "micro_batch_size", "updates_per_epoch")
_PLAIN_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")

Warn = Callable[[str], None]


class DamagedCheckpoint(RequestError):
    """Error for a checkpoint that cannot be used: a file is damaged, or a different program wrote the checkpoint."""


@dataclass(frozen=True)
class CheckpointFolder:
    """One checkpoint on disk. Each file is verified before it is used.

    known: a cache of the content of meta.json, and of the SHA-256 of every other file once it was read. The cache
        is passed on with the checkpoint, even to other processes, so that each host reads each file only once. A file
        that has changed since it was read is read again.
    """

    path: Path
    known: dict[str, tuple[StampedFile, Any]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def updates(self) -> int:
        """The number of updates that the run had made when it saved the checkpoint."""
        return int(self.path.name.removeprefix(UPDATE))

    def meta(self) -> dict[str, Any]:
        """Return the content of meta.json. DamagedCheckpoint: meta.json is unreadable, damaged or of another format."""
        return dict(self._once(META, self._checked_meta)[1])

    def _once(self, name: str, read: Callable[[Path], Any]) -> tuple[StampedFile, Any]:
        """Return a file and the result of `read` on it, from the cache `known` if the file has not changed."""
        if name not in self.known or not self.known[name][0].is_unchanged():
            try:
                before = stamped(self.path / name)  # Before the read, so that a change during it is detected.
                self.known[name] = before, read(before.path)
            except (OSError, ValueError) as error:
                seen = getattr(error, "strerror", None) or error
                raise self._damaged(f"{name} cannot be read: {seen}") from None
        return self.known[name]

    def _checked_meta(self, path: Path) -> dict[str, Any]:
        meta = parse_object(read_plain(path))
        if meta.get("meta_sha256") != _meta_digest(meta):
            raise ValueError("its SHA-256 does not match")
        if meta.get("format") != FORMAT:
            raise self._of_another_program(f"{META} has format {meta.get('format')!r:.40}, not {FORMAT}", meta)
        digests = meta.get("sha256")
        if not isinstance(digests, dict) or not all(_PLAIN_FILE.fullmatch(name) for name in digests):
            raise ValueError("sha256 does not name the files of a checkpoint")
        if CHECKPOINT.fullmatch(self.path.name) and meta.get("updates") != self.updates:
            raise ValueError(f"it says update {meta.get('updates')}: the folder was renamed or copied")
        counts = [meta.get(name) for name in _COUNTS]
        if not all(is_count(count) and count for count in counts) or not isinstance(meta.get("config"), dict):
            raise ValueError(f"{', '.join(_COUNTS)} or config are invalid")
        return meta

    def damage(self, whole: bool = True) -> str | None:
        """Return what is wrong with the checkpoint, or None if every file is intact.

        whole: False to check meta.json alone, not the gigabytes of files that it lists.
        """
        try:
            for name in self.meta()["sha256"]:
                if whole:
                    self.verified(name)
        except DamagedCheckpoint as damage:
            return damage.seen
        return None

    def check(self, fix: str = "", *, whole: bool = True) -> None:
        """Raise DamagedCheckpoint if `damage` finds any damage; the error proposes `fix` as the line to type."""
        if (damage := self.damage(whole)) is not None:
            raise self._damaged(damage, fix)

    def verified(self, name: str) -> StampedFile:
        """Verify a file and return it. DamagedCheckpoint: the file is damaged or not listed in meta.json."""
        expected = self.meta()["sha256"].get(name)
        if expected is None:
            raise self._damaged(f"{META} does not list {name}")

        def digest(path: Path) -> str:
            with open_plain(path) as opened:
                return file_digest(opened, "sha256").hexdigest()

        file, found = self._once(name, digest)
        if found != expected:
            raise self._damaged(f"{name} has a different SHA-256 than when it was written")
        return file

    @property
    def weights(self) -> list[str]:
        """The kinds of weights in the checkpoint, the selected kind first. DamagedCheckpoint: meta.json is damaged."""
        return [kind for kind, file in WEIGHTS.items() if file in self.meta()["sha256"]]

    @contextmanager
    def loading(self, name: str) -> Iterator[Path]:
        """Verify a file, and yield its path to the `with` block that loads it.

        DamagedCheckpoint: the file is damaged, or it is intact but the block fails, because another program wrote it.
        """
        try:
            yield self.verified(name).path
        except RequestError:
            raise
        except Exception as error:
            self.verified(name)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            raise self._of_another_program(f"{name}: {text:.200}", self.meta()) from None
        self.verified(name)  # Verify again: the file may have changed between the first verification and the load.

    def _of_another_program(self, seen: str, meta: Mapping[str, Any]) -> DamagedCheckpoint:
        made, weights = mapping(meta, "provenance"), shlex.quote(f"initial_weights={self.path.parent.parent}")
        return DamagedCheckpoint(
            "checkpoint-of-another-program",
            f"checkpoint {self.path} is intact, but does not fit this program: noether or your code has changed",
            seen=f"{seen}\nwritten by noether {made.get('noether')}, revision {made.get('git_revision')}",
            expected="a checkpoint that this program wrote with these settings",
            fix=f"resume=null run_id=ANOTHER_NAME {weights}      (starts a new run from this run's weights)",
        )

    def _damaged(self, seen: str, fix: str = "") -> DamagedCheckpoint:
        fix = fix or f"noether checkpoints {self.path.parent.parent} --verify      (shows which are intact)"
        summary = f"checkpoint {self.path} is damaged"
        return DamagedCheckpoint("checkpoint-damaged", summary, seen=seen, expected="unmodified files", fix=fix)


def list_checkpoints(folder: Path) -> list[CheckpointFolder]:
    """Return a run's checkpoints, oldest first, including damaged ones."""
    return [CheckpointFolder(path) for path in checkpoint_paths(folder)]


def newest_intact(folder: Path, warn: Warn = lambda text: None, *, whole: bool = True) -> CheckpointFolder | None:
    """Return the newest intact checkpoint in a folder, or None. Skip damaged checkpoints and report them to `warn`.

    whole: False to check only meta.json, if another process will verify the other files.
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
    """Return the error for a run without an intact checkpoint."""
    found = list_checkpoints(folder)
    seen = f"{len(found)} in {folder}, none of them intact: {found[-1].damage()}" if found else f"none in {folder}"
    return RequestError(
        "no-intact-checkpoint",
        f"{folder.parent} has no intact checkpoint",
        seen=seen,
        expected="a checkpoint with unmodified files",
        fix=f"noether checkpoints {folder.parent} --verify      (or start a new run: resume=null run_id=ANOTHER_NAME)",
    )


def _loss(row: Mapping[str, Any], better: Any) -> float:
    """Return the selection metric as a loss: negated if higher is better; infinity if the metric is missing."""
    metric = number(row, "metric")
    return math.inf if metric is None else -metric if better == "higher" else metric


def ranked(checkpoints: Iterable[CheckpointFolder]) -> list[CheckpointFolder]:
    """Sort checkpoints by selection metric, the best first. Of checkpoints with equal metrics, the older comes first.

    Unreadable checkpoints precede all others: each may be the best. Those without a metric come last, the newest first.
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
    """Return the update of the newest checkpoint in a folder; 0 if there is none."""
    return max((checkpoint.updates for checkpoint in list_checkpoints(folder)), default=0)


def selected_checkpoint(folder: Path, warn: Warn, *, whole: bool = True) -> CheckpointFolder:
    """Return a run's best intact checkpoint on the validation split or, if there is no metric, the newest one.

    warn: receives a line for each damaged checkpoint that is skipped, and for each better checkpoint that is missing.
    whole: as for `newest_intact`. RequestError: the run has no intact checkpoint.
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
    """Write one checkpoint: write and flush every file, then meta.json; then rename the temporary folder.

    files: the content of each file by name, in pieces. meta: further content of meta.json.
    before_rename: called when all files are on disk, before the rename. If this call or a part of `files` raises, if
        the disk refuses (OSError) or if `writer` may no longer write (NoetherError), `folder` stays unchanged.
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
        # Replace an older checkpoint of this update: it may lack the result of an evaluation that a stop cut short.
        writer.publish(partial, final)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)  # On a full disk, other writes need the space.
        if isinstance(error, OSError):
            say_if_forbidden(writer)
        raise
    flush(folder)
    return CheckpointFolder(final)


def recover_replaced(folder: Path) -> None:
    """Restore every checkpoint that was moved aside to be replaced but whose replacement was never completed."""
    for old in [*folder.glob(f".{UPDATE}*{ASIDE}"), *folder.glob(f".attempt-*/.{UPDATE}*{ASIDE}")]:
        final = folder / old.name.removeprefix(".").partition(".")[0]
        if not final.exists() and (old / META).is_file():
            old.rename(final)


def _write_flushed(path: Path, parts: Iterable[bytes | memoryview]) -> str:
    """Write a file from its parts, wait until it is on disk, and return its SHA-256."""
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
    """Remove leftovers of failed writes, and what `choose_to_prune` chooses when only meta.json is checked."""
    for checkpoint in choose_to_prune(folder, keep, lambda one: one.damage(whole=False) is not None):
        writer.drop(checkpoint.path)
    remove_leftovers(folder)


def choose_to_prune(folder: Path, keep: int, is_damaged: Callable[[CheckpointFolder], bool]) -> list[CheckpointFolder]:
    """Return the checkpoints to remove: all except the newest `keep` intact ones and the best intact one.

    If no checkpoint is intact, return an empty list, because a damaged one may still be repaired.
    """
    found = list_checkpoints(folder)
    intact = [one for one in found if not is_damaged(one)]
    kept = [*intact[-keep:], *ranked(intact)[:1]]
    return [one for one in found if one not in kept] if intact else []


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of interrupted writes and removals. Only one process may write to the folder meanwhile."""
    for leftover in folder.glob(f".{UPDATE}*"):
        shutil.rmtree(leftover, ignore_errors=True)

"""The records of a run folder, written so that damage is detected, and read in spite of damage. No torch here.

A record is a file with one JSON object, which contains the SHA-256 of its other content. A file of rows contains one
JSON object per line, each with a CRC-32. Files written by hand, without digests, are read too.
Damaged parts are skipped and reported with file and line.
"""

import errno
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from statistics import harmonic_mean
from typing import Any, TypeGuard
from zlib import crc32

from noether.common.atomic_write import UNFENCED, AppendingFile, Writer, write_json
from noether.common.numbers import finite, strict_json
from noether.common.safe_open import NotPlainFile, open_plain, read_plain

Row = dict[str, Any]
Warn = Callable[[str], None]
LARGEST_HISTORY, LONGEST_ROW = 2**32, 2**20
"""Largest readable file of rows, and longest row, in bytes: this program writes nothing larger."""
POSITION = ("kind", "time", "update", "epoch", "samples", "split", "weights", "selected")
"""Keys that locate a row in the run and are not metrics."""
RESULT_VERSION = 2
"""Version of result.json, the result of evaluating a split."""
CALIBRATION_VERSION = 2
"""Version of evaluation/intervals-….json."""
_DIGEST, _CHECKSUM = "sha256", "crc32"


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. ValueError: the text is not UTF-8, not JSON, nested too deeply, or not an object."""
    try:
        content = json.loads(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} instead of an object")
    return content


def write_record(path: Path, content: Mapping[str, Any], writer: Writer = UNFENCED) -> None:
    """Write a record atomically, with its SHA-256. OSError: the disk refuses."""
    plain = json.loads(strict_json(content))
    write_json(path, {**plain, _DIGEST: sha256(_canonical(plain)).hexdigest()}, writer)


def parse_record(path: Path) -> dict[str, Any]:
    """Return the content of a record. OSError: it cannot be read. ValueError: it is damaged."""
    content = parse_object(read_plain(path))
    written = content.pop(_DIGEST, None)
    if written is not None and written != sha256(_canonical(content)).hexdigest():
        raise ValueError("its SHA-256 does not match")
    return content


def read_record(path: Path, warn: Warn = lambda text: None) -> dict[str, Any]:
    """Return the content of a record; {} if it is missing or damaged. Report damage to `warn`."""
    try:
        return parse_record(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warn(f"{path} is damaged and skipped: {error}")
        return {}


def row_line(row: Mapping[str, Any]) -> str:
    """Return a row as a line of JSON with its CRC-32."""
    plain = json.loads(strict_json(row))
    return strict_json({**plain, _CHECKSUM: crc32(_canonical(plain))}) + "\n"


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row and wait until it is on disk. OSError: the disk refuses."""
    # First terminate a line that was cut off when its writer was killed.
    file = AppendingFile(path)
    try:
        before = file.last_byte()
        file.append((b"" if before in (b"", b"\n") else b"\n") + row_line(row).encode())
        file.sync()
    finally:
        file.close()


def read_rows(path: Path, warn: Warn = lambda text: None, most: int = LARGEST_HISTORY) -> list[Row]:
    """Return the rows in the last `most` bytes of a file, in order; [] if there is no file.

    Silently skip an unterminated last line: its writer was killed. Report any other damaged line to `warn`.
    """
    try:
        with open_plain(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > LARGEST_HISTORY:
                raise NotPlainFile(errno.EFBIG, f"larger than {LARGEST_HISTORY:,} bytes", str(path))
            begin = max(0, size - most)
            file.seek(begin)
            content = file.read(min(most, size))
    except FileNotFoundError:
        return []
    except OSError as error:
        warn(f"{path} cannot be read: {error.strerror or error}")
        return []
    rows = []
    # Split bytes, because str.splitlines would also split at U+0085 and U+2028.
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip() and not (begin and number == 1 and len(line) < LONGEST_ROW):  # Cut off by `begin`.
                rows.append(parse_row(line))
        except ValueError as error:
            if number < len(lines):
                warn(f"{path}:{number}{' of the part read' * bool(begin)} is damaged and skipped: {error}")
    return rows


def metrics_of_row(row: Row) -> tuple[str, str, Mapping[str, Any]]:
    """Return a row's split (else its kind, such as "epoch"), its weights, and its metrics' values (None for NaN)."""
    if row["kind"] == "training":
        values = {name: value for name, value in row.items() if name not in POSITION}
    else:
        values = dict(mapping(row, "metrics"))
    numbers = {name: value for name, value in values.items() if value is None or isinstance(value, (int, float))}
    return str(row.get("split", row["kind"])), str(row.get("weights", "")), numbers


def last_update(rows: Iterable[Row]) -> int | None:
    """Return the highest update among a run's rows; None if there are none."""
    return max((row["update"] for row in rows), default=None)


RECENT_ROWS = 20
"""Number of last training rows from which a run's current pace is computed."""


def last_evaluation(rows: Sequence[Row]) -> Row:
    """Return the row of the last evaluation of the selected weights; {} if there is none."""
    return next((row for row in reversed(rows) if row["kind"] == "evaluation" and row.get("selected")), {})


def newest_metrics(result: Mapping[str, Any], rows: Sequence[Row]) -> tuple[str, Mapping[str, Any]]:
    """Return the split and metrics of the result or, if it has none, of the last evaluation among the rows."""
    newest = result if mapping(result, "metrics") else last_evaluation(rows)
    return str(newest.get("split", "")), mapping(newest, "metrics")


def read_metrics(path: Path, warn: Warn = lambda text: None, most: int = LARGEST_HISTORY) -> list[Row]:
    """Return the rows of a metrics.jsonl as `read_rows` does, sorted by update; each has a `kind` and an `update`.

    Report duplicate and out-of-order rows to `warn` too, because a run never writes them. Exempt checkpoint rows from
    the order: each is written when its checkpoint is on disk, and by then later updates may have been logged.
    """
    rows: list[Row] = []
    seen: set[bytes] = set()
    latest = 0
    for row in read_rows(path, warn, most):
        if not is_metrics_row(row):
            warn(f"{path}: a row without a kind or an update is skipped: {strict_json(row)[:80]}")
        elif (content := _canonical(row)) in seen:
            warn(f"{path}: the {row['kind']} row of update {row['update']} appears twice; one is skipped")
        else:
            seen.add(content)
            rows.append(row)
            if row["kind"] == "checkpoint":
                continue
            if row["update"] < latest:
                warn(f"{path}: the {row['kind']} row of update {row['update']} comes after later ones")
            latest = row["update"]
    return sorted(rows, key=lambda row: row["update"])


def is_metrics_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row has a `kind` and a valid `update`."""
    return isinstance(row.get("kind"), str) and is_count(row.get("update"))


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a number from a row; None if it is missing or not finite."""
    value = finite(row.get(key))
    return None if value is None else float(value)


def finite_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics whose values are finite numbers."""
    return {name: value for name in metrics if (value := number(metrics, name)) is not None}


def mean_rate(rows: Iterable[Row]) -> float | None:
    """Return the mean samples per second of consecutive training rows; None if no row has a rate.

    Weight each row by its number of updates: the last row may cover few. The first row gets the weight of the second.
    """
    known = [(row, rate) for row in rows if (rate := number(row, "samples_per_second")) is not None and rate > 0]
    covered = [last.get("update", 1) - first.get("update", 0) for (first, _), (last, _) in pairwise(known)]
    weights = [max(updates, 1) for updates in (*covered[:1], *covered)] or [1]
    return harmonic_mean([rate for _, rate in known], weights) if known else None


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a count: a non-negative integer that fits into a signed 64-bit integer."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return the mapping at `key`; {} if it is missing or not a mapping."""
    value = content.get(key)
    return value if isinstance(value, Mapping) else {}


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as lines of JSON."""
    return "".join(map(row_line, rows))


def parse_row(line: bytes) -> Row:
    """Return the row of one line, without its CRC-32. ValueError: the line is damaged."""
    if len(line) > LONGEST_ROW:
        raise ValueError(f"{len(line):,} bytes in one line")
    row = parse_object(line)
    written = row.pop(_CHECKSUM, None)
    if written is not None and written != crc32(_canonical(row)):
        raise ValueError("its CRC-32 does not match")
    return row


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def parse_calibration(path: Path) -> dict[str, Any]:
    """Return a record of calibrated intervals. OSError, ValueError: it is unreadable or has another version."""
    record = parse_record(path)
    if record.get("version") != CALIBRATION_VERSION:
        raise ValueError(f"version {record.get('version')}, but this noether reads {CALIBRATION_VERSION}")
    return record

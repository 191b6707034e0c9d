"""The records of a run folder, written so that damage shows, and read so that no damage stops a run. No torch here.

Two forms: a record, a file with one JSON object that holds its own SHA-256; and rows, a file with one JSON object a
line that each hold their own CRC-32. What was written without them, by hand, is read too.
Everything that cannot be read is left out and named, with file and line.
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
"""Bytes of a file of rows that are read, and of a row: a longer one was not written by this program."""
POSITION = ("kind", "time", "update", "epoch", "samples", "split", "weights", "selected")
"""What says where a row belongs, and is not one of its metrics."""
RESULT_VERSION = 2
"""Of result.json: what an evaluation of a split found."""
CALIBRATION_VERSION = 2
"""Of evaluation/intervals-….json."""
_DIGEST, _CHECKSUM = "sha256", "crc32"


def parse_object(text: str | bytes) -> dict[str, Any]:
    """Return the JSON object of a text. ValueError: not UTF-8, not JSON, nested too deeply, or another type."""
    try:
        content = json.loads(text if isinstance(text, str) else text.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError(f"a {type(content).__name__} where an object should be")
    return content


def write_record(path: Path, content: Mapping[str, Any], writer: Writer = UNFENCED) -> None:
    """Write a record whole, with its SHA-256. Raises OSError where the disk refuses."""
    plain = json.loads(strict_json(content))
    write_json(path, {**plain, _DIGEST: sha256(_canonical(plain)).hexdigest()}, writer)


def parse_record(path: Path) -> dict[str, Any]:
    """Return the content of a record. OSError: it cannot be read. ValueError: it is not as it was written."""
    content = parse_object(read_plain(path))
    written = content.pop(_DIGEST, None)
    if written is not None and written != sha256(_canonical(content)).hexdigest():
        raise ValueError("another SHA-256 than when it was written")
    return content


def read_record(path: Path, warn: Warn = lambda text: None) -> dict[str, Any]:
    """Return the content of a record; an empty one where there is none, or where it is damaged, which is named."""
    try:
        return parse_record(path)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        warn(f"{path} is damaged and skipped: {error}")
        return {}


def row_line(row: Mapping[str, Any]) -> str:
    """Return the line of a row, with its CRC-32."""
    plain = json.loads(strict_json(row))
    return strict_json({**plain, _CHECKSUM: crc32(_canonical(plain))}) + "\n"


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    """Append one row and wait until the disk has it. Raises OSError where it refuses."""
    # A line that a kill cut off is ended first.
    file = AppendingFile(path)
    try:
        before = file.last_byte()
        file.append((b"" if before in (b"", b"\n") else b"\n") + row_line(row).encode())
        file.sync()
    finally:
        file.close()


def read_rows(path: Path, warn: Warn = lambda text: None, most: int = LARGEST_HISTORY) -> list[Row]:
    """Return the rows in the last `most` bytes of a file in order; none where there is no file.

    A last line without an end was cut off by a kill, and is left out silently; any other that cannot be read is named.
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
    # By bytes, not by str.splitlines: U+0085 and U+2028 may stand inside a line.
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            if line.strip() and not (begin and number == 1 and len(line) < LONGEST_ROW):  # It begins further back.
                rows.append(parse_row(line))
        except ValueError as error:
            if number < len(lines):
                warn(f"{path}:{number}{' of its end' * bool(begin)} is damaged and skipped: {error}")
    return rows


def metrics_of_row(row: Row) -> tuple[str, str, Mapping[str, Any]]:
    """Return the split (or "epoch": of means over one), the weights and the values of a row's metrics, None of NaN."""
    if row["kind"] == "training":
        values = {name: value for name, value in row.items() if name not in POSITION}
    else:
        values = dict(mapping(row, "metrics"))
    numbers = {name: value for name, value in values.items() if value is None or isinstance(value, (int, float))}
    return str(row.get("split", row["kind"])), str(row.get("weights", "")), numbers


def last_update(rows: Iterable[Row]) -> int | None:
    """Return the newest update of the rows of a run; None where there are none."""
    return max((row["update"] for row in rows), default=None)


RECENT_ROWS = 20
"""How many of the last training rows tell a run's present pace."""


def last_evaluation(rows: Sequence[Row]) -> Row:
    """Return the row of the last evaluation, of the selected weights; an empty one where there is none."""
    return next((row for row in reversed(rows) if row["kind"] == "evaluation" and row.get("selected")), {})


def newest_metrics(result: Mapping[str, Any], rows: Sequence[Row]) -> tuple[str, Mapping[str, Any]]:
    """Return a result's split and metrics; before there is one, those of the last evaluation among a run's rows."""
    newest = result if mapping(result, "metrics") else last_evaluation(rows)
    return str(newest.get("split", "")), mapping(newest, "metrics")


def read_metrics(path: Path, warn: Warn = lambda text: None, most: int = LARGEST_HISTORY) -> list[Row]:
    """Return the rows of a metrics.jsonl as `read_rows` does, by their updates, each with a `kind` and an `update`.

    Rows that stand there twice, or before earlier ones, are named too: nothing that a run does leaves them so, but that
    a checkpoint's row comes when it is on disk, by when updates have gone on.
    """
    rows: list[Row] = []
    seen: set[bytes] = set()
    latest = 0
    for row in read_rows(path, warn, most):
        if not is_metrics_row(row):
            warn(f"{path}: a row without a kind or an update is skipped: {strict_json(row)[:80]}")
        elif (content := _canonical(row)) in seen:
            warn(f"{path}: the {row['kind']} row of update {row['update']} stands there twice; one is skipped")
        else:
            seen.add(content)
            rows.append(row)
            if row["kind"] == "checkpoint":
                continue
            if row["update"] < latest:
                warn(f"{path}: the {row['kind']} row of update {row['update']} stands after later ones")
            latest = row["update"]
    return sorted(rows, key=lambda row: row["update"])


def is_metrics_row(row: Mapping[str, Any]) -> bool:
    """Return whether a row says what it is and where it belongs: a `kind`, and an `update` that is a count."""
    return isinstance(row.get("kind"), str) and is_count(row.get("update"))


def number(row: Mapping[str, Any], key: str) -> float | None:
    """Return a row's number; None where it has none, or one that is not finite."""
    value = finite(row.get(key))
    return None if value is None else float(value)


def finite_values(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Return the metrics that are finite numbers."""
    return {name: value for name in metrics if (value := number(metrics, name)) is not None}


def mean_rate(rows: Iterable[Row]) -> float | None:
    """Return the samples per second of training rows together, in their order; None where no row says.

    Each row counts by its updates, of which the last of a run has few; the first is taken for as long as the second.
    """
    known = [(row, rate) for row in rows if (rate := number(row, "samples_per_second")) is not None and rate > 0]
    covered = [last.get("update", 1) - first.get("update", 0) for (first, _), (last, _) in pairwise(known)]
    weights = [max(updates, 1) for updates in (*covered[:1], *covered)] or [1]
    return harmonic_mean([rate for _, rate in known], weights) if known else None


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether a value is a number of things: an integer of at least 0 that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def mapping(content: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object inside an object; an empty one where something else stands there."""
    value = content.get(key)
    return value if isinstance(value, Mapping) else {}


def rows_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the lines of rows."""
    return "".join(map(row_line, rows))


def parse_row(line: bytes) -> Row:
    """Return the row of one line, without its CRC-32. Raises ValueError where it is not as it was written."""
    if len(line) > LONGEST_ROW:
        raise ValueError(f"{len(line):,} bytes in one line")
    row = parse_object(line)
    written = row.pop(_CHECKSUM, None)
    if written is not None and written != crc32(_canonical(row)):
        raise ValueError("another CRC-32 than when it was written")
    return row


def _canonical(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def parse_calibration(path: Path) -> dict[str, Any]:
    """Return a record of calibrated intervals. OSError, ValueError: it cannot be read, or not by this version."""
    record = parse_record(path)
    if record.get("version") != CALIBRATION_VERSION:
        raise ValueError(f"version {record.get('version')}, where this noether reads {CALIBRATION_VERSION}")
    return record

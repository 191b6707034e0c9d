"""Pictures of a run: the image files in its folder, and drawings of its evaluated fields. Does not import torch.

Importing the drawing libraries (matplotlib, SciPy) takes seconds, so they are imported only when a field is drawn.
"""

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from noether.common.numbers import finite
from noether.runs.folder import RunFolder
from noether.runs.report.elements import heading, in_words
from noether.runs.report.numbers import percent
from noether.runs.report.run import ReportedRun, read_evaluation
from noether.watch.inside import KeptReadings, is_inside, opened_inside

if TYPE_CHECKING:
    from noether.runs.report.cases import DrawnCase, FieldCases

TYPES = {".png": "image/png", ".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".webp": "image/webp"}
"""{ending: media type} of the image files to show. SVG is not included, because it can contain scripts."""
MOST_FILES = 200
MOST_LOOKED_AT = 5000
MOST_BYTES = 32 * 2**20
MOST_ARRAYS_BYTES = 256 * 2**20
_KEPT = 64
_NOT_SEARCHED = ("checkpoints", "tensorboard")


@dataclass(frozen=True)
class Picture:
    """A picture: an image file, or a drawing of `field`, made by the function `draw`, from the view named `seen`.

    `group`: the title above its group of pictures. `id`: its name in addresses, which changes when its file changes.
    """

    group: str
    title: str
    note: str
    path: Path
    id: str
    field: str = ""
    seen: str = ""
    draw: Callable[[], bytes | None] | None = None

    def described(self) -> dict[str, str]:
        """Return the description of the picture that the page gets."""
        alt = f"{self.title}, {in_words(self.field) or self.group}, {self.note}".rstrip(", ")
        names = ("id", "group", "title", "note", "seen")
        return {**{name: getattr(self, name) for name in names}, "alt": alt}


def _id(*parts: object) -> str:
    return sha256("\0".join(map(str, parts)).encode(errors="surrogateescape")).hexdigest()[:24]


class Pictures:
    """The pictures of one run. A field is drawn only on request, and only one at a time."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._kept = KeptReadings(folder.path)
        self._made: OrderedDict[str, bytes] = OrderedDict()
        self._listed: dict[str, Picture] = {}
        self._lock = threading.Lock()

    def listing(self) -> list[Picture]:
        """Return the current pictures: the drawings, then the image files."""
        with self._lock:
            found = [*self._drawn(), *islice(self._files(), MOST_FILES)]
            self._listed = {picture.id: picture for picture in found}
            return found

    def content(self, name: str) -> tuple[bytes, str] | None:
        """Return a listed picture's bytes and type; None if the name is not listed, or the picture cannot be drawn."""
        with self._lock:
            picture = self._listed.get(name)
            if picture is None:
                return None
            if picture.draw is None:
                try:
                    with opened_inside(self._folder.path, picture.path) as file:
                        return file.read(MOST_BYTES), TYPES[picture.path.suffix.lower()]
                except OSError:
                    return None
            made = self._made.get(name) or picture.draw()
            if made is None:
                return None
            self._made[name] = made
            self._made.move_to_end(name)
            while len(self._made) > _KEPT:
                self._made.popitem(last=False)
            return made, "image/webp"

    def _files(self) -> Iterator[Picture]:
        looked_at = 0
        for parent, folders, names in os.walk(self._folder.path):
            looked_at += len(names)
            folders[:] = sorted(name for name in folders if name not in _NOT_SEARCHED and not name.startswith("."))
            for name in sorted(names):
                path = Path(parent) / name
                if path.suffix.lower() not in TYPES or not is_inside(self._folder.path, path):
                    continue
                place = path.relative_to(self._folder.path)
                group = "Image files" if place.parent == Path(".") else f"Image files in {place.parent}"
                yield Picture(group, name, "", path, _id(path, path.lstat().st_mtime_ns))
            if looked_at >= MOST_LOOKED_AT:
                return

    def _drawn(self) -> Iterator[Picture]:
        for path in sorted(self._folder.evaluation.glob("*.npz")):
            if not is_inside(self._folder.path, path) or path.lstat().st_size > MOST_ARRAYS_BYTES:
                continue
            changed = path.lstat().st_mtime_ns
            fields: list[FieldCases] = self._kept.of(path, partial(_fields, self._folder), [])
            for field in fields:
                for number, case in enumerate(field.cases):
                    error = percent(finite(case.relative_l2, None))
                    by = "" if field is fields[0] else f" by {in_words(fields[0].name)}"  # All fields have equal cases.
                    note = f"{heading(case.label)} case{by}: {case.sample}, relative L2 {error}"
                    source = "while training" if path == self._folder.latest_case else f"{path.stem} split"
                    group = f"{heading(field.name)}, {source}"
                    for column, (title, _, _) in enumerate(field.columns(case)):
                        own, draw = _id(path, changed, field.name, number, column), partial(_draw, field, case, column)
                        yield Picture(group, title, note, path, own, field=field.name, seen=field.seen, draw=draw)


def _draw(field: "FieldCases", case: "DrawnCase", column: int) -> bytes | None:
    from scipy.spatial import QhullError

    from noether.runs.report.cases import field_picture

    _, values, scale = field.columns(case)[column]
    try:
        return field_picture(field.view(case), values, scale)
    except (QhullError, ValueError):  # There are too few points, or all are in a plane.
        return None


def _fields(folder: RunFolder, path: Path) -> "list[FieldCases]":
    from noether.runs.report.cases import NothingToDraw, field_cases

    try:
        meta, arrays = read_evaluation(path)
    except Exception:  # A damaged archive can raise many kinds of errors.
        return []
    run = ReportedRun(folder.path.name, folder.path, config="", plan={}, environment={}, result={}, rows=[],
                      meta=meta, arrays=arrays)  # fmt: skip
    found = []
    for name in run.fields if meta.get("cases") else ():
        try:
            found.append(field_cases(run, name))
        except (NothingToDraw, KeyError, TypeError, ValueError, AttributeError):
            continue
    return found

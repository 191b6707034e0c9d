"""Changes what a run stands on: its data before it is resumed, and the weights of another run that it begins with.

    python -m tests.faults.changed --cases 300 [--first 0] [--record FILE]

An even case is a run that is killed; then its data are changed. The next start must refuse them by the code of the
change, go on with them under `accept_changes` where they are whole, and with the data put back end bit for bit as the
undisturbed run. An odd case is a run that begins with the weights of another of which one file is damaged: it must be
refused by a code, or end with the weights that the undamaged one gives.
"""

import json
import random
import re
import shutil
import sys
import tempfile
from functools import cached_property
from pathlib import Path

import yaml

from noether.checkpoints.format import list_checkpoints, newest_update, ranked

from . import victim
from .commands import NO_TRACEBACK, run_command
from .damage import WAYS
from .data_changes import DATA, OTHER_DATA, write_cars, write_lines
from .room import LIMIT_S, Room, Undisturbed, ended, final_hashes, history
from .series import options, run_series

OWN = Path(__file__).resolve().parent / "own"
TESTS = OWN.parents[1]


class DataRoom(Room):
    """Runs on data of one kind, which every case takes a fresh copy of."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        self.kind, self.data, self.intact = kind, folder / "data", folder / "intact"
        more, settings = self._write()
        super().__init__(folder, f"dataset_root={self.data}", "trainer.evaluate_every=null", *more, settings=settings)
        self.put_back()
        self.calm: Undisturbed = self.undisturbed(1)

    def _write(self) -> tuple[tuple[str, ...], Path]:
        """Writes the data; returns what their runs are asked for, and the settings of these."""
        tiny = TESTS / "tiny.yaml"
        if self.kind == "own":
            write_lines(self.intact)
            settings = yaml.safe_load((OWN / "lines.yaml").read_text())
            settings["dataset"] = {"kind": "slow_lines.StoredLines", "validation_fraction": 0.25}
            own = self.intact.with_name("lines.yaml")
            own.write_text(yaml.safe_dump(settings))
            return (), own
        if self.kind == "cars":
            write_cars(self.intact)
            return (), tiny
        source = self.intact.with_name("source")
        log, environ = source.with_name("prepare.log"), {"OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(source)}

        def write() -> None:  # VTK starts threads, which a process that forks must not have.
            from simulated_cases import MAP, write_cases

            write_cases(source, 6)
            source.with_suffix(".yaml").write_text(MAP)

        assert victim.fork(write, log, environ).wait(LIMIT_S) == 0, log.read_text()
        words = ["data", "prepare", str(source), str(self.intact), "--map", str(source.with_suffix(".yaml"))]
        assert run_command(words, log, environ) == 0, log.read_text()
        settings = source.with_name("cases.yaml")
        points = {"surface": 8, "volume": 8}
        sizes = {"dataset": {"points_per_update": points}, "model": {"dim": 16}, "accelerator": "cpu"}
        defaults = ["/train", {"override /dataset": "cases"}, {"override /model": "mlp"}, "_self_"]
        settings.write_text(yaml.safe_dump({"defaults": defaults, **sizes}))
        return ("trainer.effective_batch_size=2", "trainer.max_epochs=null", "tracker.report=false"), settings

    def put_back(self) -> None:
        shutil.rmtree(self.data, ignore_errors=True)
        shutil.copytree(self.intact, self.data)

    def train(self, name: str, **changes) -> tuple[int | None, str]:
        """Starts a run; returns its exit code, and the code of its refusal, or all that it said."""
        log = self.log(name)
        log.unlink(missing_ok=True)
        code = ended(victim.start(self.config_of(name, **changes), log, self.environ), LIMIT_S)
        said = log.read_text(errors="replace")
        return code, refusal_of(said) if code == 2 else said

    def run_case(self, way: str, rng: random.Random) -> tuple[str, list[str]]:
        """Kills a run, changes its data, and resumes it; returns what was done, and what went wrong."""
        change, name, wrong = DATA[self.kind][way], "case", []
        for folder in (self.run_folder(name), self.run_folder("accepted")):
            shutil.rmtree(folder.path, ignore_errors=True)
        operation = int(self.calm.operations * rng.uniform(0.3, 0.95))
        victim.start(self.config_of(name), self.log(name), self.environ, die_at=operation).wait(LIMIT_S)
        saved = newest_update(self.run_folder(name).checkpoints)
        change.make(self.data)
        story = f"{self.kind}: {way}: killed at operation {operation}, saved at update {saved}"
        if saved:  # Else the next start is the first, which may train on whatever is whole.
            found = self.train(name)
            if found != (2, change.code):
                wrong.append(f"expected {change.code}, found {found}")
            shutil.copytree(self.run_folder(name).path, self.run_folder("accepted").path)
            code, said = self.train("accepted", accept_changes=("dataset",))
            if code != (0 if change.code == OTHER_DATA else 2) or NO_TRACEBACK in said:
                wrong.append(f"accepted: {code}, {said}")
        self.put_back()
        code, said = self.train(name)
        if code != 0 or final_hashes(self.run_folder(name)) != self.calm.hashes:
            wrong.append(f"with its own data: {code}, or other weights\n{said}")
        elif history(self.run_folder(name)) != self.calm.rows:
            wrong.append("with its own data: another history")
        return story, wrong


def refusal_of(said: str) -> str:
    """Returns the code of a refusal, which ends a line that is not indented; all that was said where there is none."""
    codes = re.findall(r"^\S.*\[([a-z0-9-]+)\]$", said, re.MULTILINE)
    return codes[-1] if codes and NO_TRACEBACK not in said else said


class SourceRoom(Room):
    """Runs that begin with the weights of another, of which a file is damaged."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.undisturbed(1)
        run, self.intact, self.source = self.run_folder("calm-1"), folder / "intact", folder / "source"
        shutil.copytree(run.path, self.intact / "run")
        log = self.log("export")
        code = run_command(["export", str(run.path), str(self.intact / "export"), "--weights-only"], log, self.environ)
        assert code == 0, log.read_text()
        best = ranked(list_checkpoints(self.intact / "run" / "checkpoints"))[0]
        at = f"run/checkpoints/{best.path.name}"
        self.places = (
            "run",
            at,
            f"{at}/ema.safetensors",
            f"{at}/model.safetensors",
            "export",
            "export/model.safetensors",
        )
        self.cases = [
            (place, str(path.relative_to(self.intact)), way)
            for place in self.places
            for path in sorted((self.intact / place.partition("/")[0]).rglob("*"))
            if path.is_file()
            for way in WAYS
            # Most files of a run are not looked at by whoever begins with its weights.
            if place == "run" or path.parent.name in (best.path.name, "export")
        ]
        random.Random(0).shuffle(self.cases)
        self.calm = {place: self._begin(place)[1] for place in self.places}

    def _begin(self, place: str) -> tuple[int | None, str]:
        """Trains an update from there; returns the exit code, and the digests or the refusal's code."""
        name = "case"
        shutil.rmtree(self.run_folder(name).path, ignore_errors=True)
        self.log(name).unlink(missing_ok=True)
        short = self.config.trainer.model_copy(update={"max_updates": 1, "evaluate_every": None})
        config = self.config_of(name, initial_weights=str(self.source / place), trainer=short)
        if not self.source.exists():
            shutil.copytree(self.intact, self.source)
        code = ended(victim.start(config, self.log(name), self.environ), LIMIT_S)
        if code == 0:
            return code, json.dumps(final_hashes(self.run_folder(name)))
        return code, refusal_of(self.log(name).read_text(errors="replace"))

    def run_case(self, number: int) -> tuple[str, list[str]]:
        """Damages a file of the source and begins with it; returns what was done, and what went wrong."""
        place, file, way = self.cases[number % len(self.cases)]
        shutil.rmtree(self.source, ignore_errors=True)
        shutil.copytree(self.intact, self.source)
        WAYS[way](self.source / file, random.Random(f"{number} {way}"))
        code, found = self._begin(place)
        story = f"from {place}, {file}: {way}: {'the same weights' if found == self.calm[place] else found}"
        sound = (code == 0 and found == self.calm[place]) or (code == 2 and re.fullmatch(r"[a-z-]+", found))
        return story, [] if sound else [f"exit code {code}"]


class Scene:
    """The rooms, each made when its first case comes."""

    def __init__(self, folder: Path) -> None:
        sys.path[:0] = [str(OWN), str(TESTS)]
        self.folder, self.rooms = folder, {}
        self.changes = [(kind, way) for kind, ways in DATA.items() for way in ways]
        random.Random(0).shuffle(self.changes)

    @cached_property
    def sources(self) -> SourceRoom:
        return SourceRoom(self.folder / "sources")

    def run_case(self, number: int) -> tuple[str, list[str]]:
        half, odd = divmod(number, 2)
        if odd:
            return self.sources.run_case(half)
        kind, way = self.changes[half % len(self.changes)]
        if kind not in self.rooms:
            self.rooms[kind] = DataRoom(self.folder / kind, kind)
        return self.rooms[kind].run_case(way, random.Random(number))


def main() -> int:
    given = options(__doc__, 300).parse_args()
    import noether.training.start  # noqa: F401
    import noether.training.train  # noqa: F401  Once, and not in every process that is started.

    with tempfile.TemporaryDirectory(prefix="changed-") as scratch:
        scene = Scene(Path(scratch))
        return run_series(given, scene.run_case, summary="changes, {failed} unsaid or tracebacks")


if __name__ == "__main__":
    sys.exit(main())

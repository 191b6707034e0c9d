"""Change the data of a run between a kill and the next start.

    python -m tests.faults.changed --cases 150 [--first 0] [--record FILE]

In each case, a run is killed; then its data are changed. The next start must be refused with the error code of that
change. With `accept_changes`, the run must continue if the changed data are intact. With the original data, the run
must end with the same bits as an undisturbed run.
"""

import random
import re
import shutil
import sys
from pathlib import Path

import yaml

from noether.checkpoints.format import newest_update

from . import victim
from .data_changes import DATA, OTHER_DATA, write_cars, write_lines
from .room import LIMIT_S, NO_TRACEBACK, Room, Undisturbed, ended, final_hashes, history, run_command
from .series import harness

OWN = Path(__file__).resolve().parent / "own"
TESTS = OWN.parents[1]


class DataRoom(Room):
    """A test folder for runs on one kind of data; every case starts with a fresh copy of the data."""

    def __init__(self, folder: Path, kind: str) -> None:
        folder.mkdir()
        self.kind, self.data, self.intact = kind, folder / "data", folder / "intact"
        more, settings = self._write()
        super().__init__(folder, f"dataset_root={self.data}", "trainer.evaluate_every=null", *more, settings=settings)
        self.put_back()
        self.calm: Undisturbed = self.undisturbed(1)

    def _write(self) -> tuple[tuple[str, ...], Path]:
        """Write the data; return the additional overrides and the settings file of all runs."""
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

        def write() -> None:  # Runs in a fork, because VTK starts threads, and this process must not have any to fork.
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
        """Start a run; return its exit code, and its error code if it was refused, else its whole output."""
        log = self.log(name)
        log.unlink(missing_ok=True)
        code = ended(victim.start(self.config_of(name, **changes), log, self.environ), LIMIT_S)
        said = log.read_text(errors="replace")
        return code, refusal_of(said) if code == 2 else said

    def run_case(self, way: str, rng: random.Random) -> tuple[str, list[str]]:
        """Kill a run, change its data, and resume it; return a description and a list of failures."""
        change, name, wrong = DATA[self.kind][way], "case", []
        for folder in (self.run_folder(name), self.run_folder("accepted")):
            shutil.rmtree(folder.path, ignore_errors=True)
        operation = int(self.calm.operations * rng.uniform(0.3, 0.95))
        victim.start(self.config_of(name), self.log(name), self.environ, die_at=operation).wait(LIMIT_S)
        saved = newest_update(self.run_folder(name).checkpoints)
        change.make(self.data)
        story = f"{self.kind}: {way}: killed at operation {operation}, saved at update {saved}"
        if saved:  # A run that has saved nothing starts from scratch, on any intact data.
            found = self.train(name)
            if found != (2, change.code):
                wrong.append(f"on the changed data: expected {change.code}, found {found}")
            shutil.copytree(self.run_folder(name).path, self.run_folder("accepted").path)
            code, said = self.train("accepted", accept_changes=("dataset",))
            if code != (0 if change.code == OTHER_DATA else 2) or NO_TRACEBACK in said:
                wrong.append(f"with accept_changes: unexpected exit code {code}\n{said}")
        self.put_back()
        code, said = self.train(name)
        if code != 0 or final_hashes(self.run_folder(name)) != self.calm.hashes:
            wrong.append(f"on the original data: exit code {code}, or different weights\n{said}")
        elif history(self.run_folder(name)) != self.calm.rows:
            wrong.append("on the original data: different history")
        return story, wrong


def refusal_of(said: str) -> str:
    """Return the error code, at the end of an unindented line; if there is no error code, return the whole output."""
    codes = re.findall(r"^\S.*\[([a-z0-9-]+)\]$", said, re.MULTILINE)
    return codes[-1] if codes and NO_TRACEBACK not in said else said


class Scene:
    """The test folders, one for each kind of data, created when first needed."""

    def __init__(self, folder: Path) -> None:
        import noether.training.start  # noqa: F401
        import noether.training.train  # noqa: F401  Imported once here, instead of in every fork.

        sys.path[:0] = [str(OWN), str(TESTS)]
        self.folder, self.rooms = folder, {}
        self.changes = [(kind, way) for kind, ways in DATA.items() for way in ways]
        random.Random(0).shuffle(self.changes)

    def run_case(self, number: int) -> tuple[str, list[str]]:
        kind, way = self.changes[number % len(self.changes)]
        if kind not in self.rooms:
            self.rooms[kind] = DataRoom(self.folder / kind, kind)
        return self.rooms[kind].run_case(way, random.Random(number))


if __name__ == "__main__":
    sys.exit(harness(__doc__, 150, lambda folder: Scene(folder).run_case, "changes, {failed} unreported or tracebacks"))

"""Damage every file of a run folder in every way, and run the commands on the result.

    python -m tests.faults.damage --cases 1500 [--first 0] [--record FILE] [--only "copied|doubled"]

A case damages one file or folder of a run in one way, then runs the commands. The run was killed midway, stopped after
it had saved everything, or finished. The case fails if a command ends in a traceback, or if the damage changes the
weights, the rows of the history or the metrics without a message. With --record, each finished case adds a line to
FILE, and the next call skips the recorded cases.
"""

import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from noether.checkpoints.format import list_checkpoints
from noether.runs.folder import RunFolder
from noether.runs.provenance import provenance
from noether.runs.records import read_metrics
from tests.processes import wait_for

from .room import LIMIT_S, NO_TRACEBACK, Blow, CalmRoom, ended, final_hashes, history, run_command
from .series import options, run_series


def _write(change: Callable[[bytes, random.Random], bytes]) -> Callable[[Path, random.Random], None]:
    def damage(path: Path, rng: random.Random) -> None:
        path.write_bytes(change(path.read_bytes(), rng))

    return damage


def _flip(content: bytes, rng: random.Random) -> bytes:
    if not content:
        return b"\x01"
    position = rng.randrange(len(content))
    return content[:position] + bytes([content[position] ^ (1 << rng.randrange(8))]) + content[position + 1 :]


def _insert(piece: bytes) -> Callable[[bytes, random.Random], bytes]:
    def insert(content: bytes, rng: random.Random) -> bytes:
        position = rng.randint(0, len(content))
        return content[:position] + piece + content[position:]

    return insert


def _line(text: str) -> Callable[[bytes, random.Random], bytes]:
    """Return a function that replaces a random line with `text`."""

    def replace(content: bytes, rng: random.Random) -> bytes:
        lines = content.split(b"\n")
        lines[rng.randrange(len(lines))] = text.encode()
        return b"\n".join(lines)

    return replace


def _lines(change: Callable[[list[bytes], int, int], object]) -> Callable[[bytes, random.Random], bytes]:
    """Return a function that changes a file by `change(lines, i, j)`; i and j are random indices of its lines."""

    def act(content: bytes, rng: random.Random) -> bytes:
        lines = content.splitlines(keepends=True) or [b""]
        change(lines, rng.randrange(len(lines)), rng.randrange(len(lines)))
        return b"".join(lines)

    return act


def _exchange(lines: list[bytes], one: int, other: int) -> None:
    lines[one], lines[other] = lines[other], lines[one]


def _value(text: str) -> Callable[[bytes, random.Random], bytes]:
    """Return a function that replaces one value (after a colon) by `text`; if there is no value, the whole content."""

    def replace(content: bytes, rng: random.Random) -> bytes:
        places = [i for i in range(len(content)) if content[i : i + 2] == b": "]
        if not places:
            return text.encode()
        start = rng.choice(places) + 2
        ends = [e for e in (content.find(b, start) for b in (b",", b"\n", b"}")) if e > 0]
        return content[:start] + text.encode() + content[min(ends, default=len(content)) :]

    return replace


def _instead(make: Callable[[Path], object]) -> Callable[[Path, random.Random], None]:
    """Return a function that removes a file and calls `make` with its path."""

    def replace(path: Path, rng: random.Random) -> None:
        path.unlink()
        make(path)

    return replace


WAYS: dict[str, Callable[[Path, random.Random], None]] = {
    "flip a bit": _write(_flip),
    "flip another bit": _write(_flip),
    "flip a third bit": _write(_flip),
    "halve": _write(lambda content, rng: content[: len(content) // 2]),
    "cut the last byte": _write(lambda content, rng: content[:-1]),
    "cut somewhere": _write(lambda content, rng: content[: rng.randint(0, len(content))]),
    "empty": _write(lambda content, rng: b""),
    "zeros": _write(lambda content, rng: bytes(len(content))),
    "noise": _write(lambda content, rng: rng.randbytes(len(content))),
    "not UTF-8": _write(_insert(b"\xff\xfe\x80")),
    "a NUL": _write(_insert(b"\0")),
    "a list": _write(lambda content, rng: b"[1, 2]\n"),
    "a number": _write(lambda content, rng: b"3\n"),
    "a text": _write(lambda content, rng: b'"text"\n'),
    "null": _write(lambda content, rng: b"null\n"),
    "nested": _write(lambda content, rng: b'{"a":' * 100_000),
    "a line of null": _write(_line("null")),
    "a line of a list": _write(_line("[]")),
    "a line of other keys": _write(_line('{"update": null, "kind": 3}')),
    "a line gone": _write(_lines(lambda lines, one, other: lines.pop(one))),
    "a line doubled": _write(_lines(lambda lines, one, other: lines.insert(one, lines[one]))),
    "a line doubled elsewhere": _write(_lines(lambda lines, one, other: lines.insert(one, lines[other]))),
    "two lines exchanged": _write(_lines(_exchange)),
    "a value of null": _write(_value("null")),
    "a value of 0": _write(_value("0")),
    "a value of a list": _write(_value("[]")),
    "a value of a huge number": _write(_value("1e999")),
    "another file's content": _write(lambda content, rng: b"# another\nkey: value\n"),
    "gone": lambda path, rng: path.unlink(),
    "a folder": _instead(Path.mkdir),
    "a dangling link": _instead(lambda path: path.symlink_to(path.with_name("nowhere"))),
    "a pipe": _instead(os.mkfifo),
    "a link to /dev/zero": _instead(lambda path: path.symlink_to("/dev/zero")),
}
FOLDER_WAYS: dict[str, Callable[[Path, random.Random], None]] = {
    "folder gone": lambda path, rng: shutil.rmtree(path),
    "folder empty": lambda path, rng: (shutil.rmtree(path), path.mkdir()),  # type: ignore[func-returns-value]
    "a file for a folder": lambda path, rng: (shutil.rmtree(path), path.write_text("x")),  # type: ignore[func-returns-value]
    "folder doubled": lambda path, rng: (shutil.copytree(path, f"{path}.bak"), None),  # type: ignore[func-returns-value]
}
COPY = "update-000000099"
CHECKPOINT_WAYS: dict[str, Callable[[Path, random.Random], object]] = {
    "copied to a newer name": lambda path, rng: shutil.copytree(path, path.with_name(COPY)),
    "renamed": lambda path, rng: path.rename(path.with_name(COPY)),
    "another copied over it": lambda path, rng: (shutil.rmtree(path), shutil.copytree(_another(path, rng), path)),
}


def _another(path: Path, rng: random.Random) -> Path:
    return rng.choice([other.path for other in list_checkpoints(path.parent)])


class Case(NamedTuple):
    stage: str
    file: str
    way: str

    def __str__(self) -> str:
        return ": ".join(self)


class Scene(CalmRoom):
    """A test folder with three runs: one killed midway, one stopped after saving, one finished."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tracker.tensorboard=true")
        shutil.rmtree(self.run_folder("first").path)
        provenance()  # Runs git once here; every fork has the cached result.
        self.stages = {name: folder / f"stage-{name}" for name in ("killed", "stopped", "done")}
        shutil.copytree(folder / "calm-1", self.stages["done"])
        self.start("stage-killed", 1, Blow(0, operation=int(self.calm.operations * 0.6)))[0].wait(120)
        self._stop("stage-stopped")
        self.evaluated = {name: self.metrics(stage)[1] for name, stage in self.stages.items()}

    def _stop(self, name: str) -> None:
        """Stop a run midway, so that it saves everything; retry if it ends before the signal arrives."""
        for _ in range(20):
            shutil.rmtree(self.folder / name, ignore_errors=True)
            if self._stop_once(name, self.run_folder(name)):
                return
        raise AssertionError("the run could not be stopped in the middle")

    def _stop_once(self, name: str, folder: RunFolder) -> bool:
        (victim,) = self.start(name, 1)
        wait_for(
            "update 3",
            lambda: victim.wait(0) is not None or any(r["update"] >= 3 for r in read_metrics(folder.metrics)),
            longest_pause_s=0.005,
        )
        victim.kill(signal.SIGTERM)
        return victim.wait(60) == 75 and len(list_checkpoints(folder.checkpoints)) > 1

    def metrics(self, folder: Path) -> tuple[int, str, str]:
        """Evaluate a run; return the exit code, the metrics, and the output."""
        code, said = self._run(["evaluate", str(folder), "--json", "--split", "validation"])
        try:
            metrics = json.dumps(json.loads(said[said.index("{\n") :])["metrics"])
        except (ValueError, KeyError):
            metrics = ""
        return code, metrics, said

    def cases(self) -> list[Case]:
        found = []
        for stage, folder in self.stages.items():
            for path in sorted(folder.rglob("*")):
                ways = [*(FOLDER_WAYS if path.is_dir() else WAYS)]
                ways += CHECKPOINT_WAYS if path.parent.name == "checkpoints" else ()
                found += [Case(stage, str(path.relative_to(folder)), way) for way in ways]
        return found

    def run_case(self, number: int, case: Case) -> list[str]:
        """Damage a copy of the stage and run the commands; return a list of failures."""
        rng, before = random.Random(f"{number} {case}"), self.evaluated[case.stage]
        run = self.run_folder("case")
        shutil.rmtree(run.path, ignore_errors=True)
        shutil.copytree(self.stages[case.stage], run.path, symlinks=True)
        (run.path / "report.html").unlink(missing_ok=True)
        target = run.path / case.file
        {**WAYS, **FOLDER_WAYS, **CHECKPOINT_WAYS}[case.way](target, rng)
        wrong: list[str] = []
        names = set(Path(case.file).parts) - {"checkpoints", "logs", "evaluation", "tensorboard"}
        names |= {Path(case.file).name} | ({COPY} if case.way in CHECKPOINT_WAYS else set())

        code, metrics, said = 0, before, ""
        if number % 2 or case.file.startswith(("checkpoints", "config")):
            code, metrics, said = self.metrics(run.path)
            self._judge("evaluate", code, said, wrong)
        if code == 0 and metrics != before and not any(name in said for name in names):
            wrong.append(f"evaluate: different metrics without a message\n{said}")
        for words in (["status", "--output-path", str(self.folder)], ["checkpoints", str(run.path), "--verify"],
                      ["report", str(run.path)], ["logs", str(run.path)]):  # fmt: skip
            # The report takes seconds to draw, and most damage is in files that it does not read.
            if words[0] == "report" and number % 8 and not case.file.startswith(("evaluation", "result", "metrics")):
                continue
            code, said = self._run(words)
            self._judge(words[0], code, said, wrong)
            in_checkpoint = case.file.startswith("checkpoints/update-") and case.way not in FOLDER_WAYS
            if words[0] == "checkpoints" and code == 0 and in_checkpoint and not any(name in said for name in names):
                wrong.append(f"checkpoints --verify: the damaged file is not named\n{said}")
        log = self.log("case")
        log.unlink(missing_ok=True)
        code = ended(self.start("case", 1)[0], LIMIT_S)  # A fork, because a new process would double the time.
        said = log.read_text(errors="replace")
        self._judge("train", code, said, wrong)
        if "doubled" in case.way and case.file == "metrics.jsonl" and case.file not in said:
            wrong.append(f"train: the duplicated row is not reported\n{said}")
        if code == 0:
            shutil.rmtree(run.checkpoints / COPY, ignore_errors=True)
            are_other = {"weights": final_hashes(run) != self.calm.hashes, "history": history(run) != self.calm.rows}
            different = [name for name, is_other in are_other.items() if is_other]
            if different and not any(name in said for name in names):
                wrong.append(f"train: different {' and '.join(different)} without a message\n{said}")
        return wrong

    def _run(self, words: list[str]) -> tuple[int, str]:
        log = self.folder / "command.log"
        log.unlink(missing_ok=True)
        code = run_command(words, log, self.environ)
        return code, log.read_text(errors="replace")

    def _judge(self, command: str, code: int, said: str, wrong: list[str]) -> None:
        if NO_TRACEBACK in said or code not in (0, 1, 2):
            wrong.append(f"{command}: exit code {code}\n{said}")


def main() -> int:
    parser = options(__doc__, 1500)
    parser.add_argument("--only", default="", help="run only the cases whose names match this regular expression")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="damage-") as scratch:
        scene = Scene(Path(scratch))
        every = [case for case in scene.cases() if re.search(given.only, str(case))]
        random.Random(0).shuffle(every)
        print(f"{len(every)} different cases of damage", flush=True)

        def run_case(number: int) -> tuple[str, list[str]]:
            case = every[number % len(every)]
            return str(case), scene.run_case(number, case)

        return run_series(given, run_case, summary="damages, {failed} tracebacks or silent differences")


if __name__ == "__main__":
    sys.exit(main())

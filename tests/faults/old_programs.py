"""Alter runs of released versions as if another program had written them, and continue them.

    python -m tests.faults.old_programs --cases 150 [--first 0] [--record FILE]

A case changes one name, shape or nesting in one file of a released run, and corrects the digests. It fails if a command
ends in a traceback or reports damage, if the checkpoint does not verify, or if weights or metrics differ without a
message.
"""

import copy
import json
import random
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors.torch import load_file, save_file

from noether.checkpoints.format import WEIGHTS, list_checkpoints, write_checkpoint

from .room import NO_TRACEBACK, Room, final_hashes, run_command
from .series import harness

RELEASED = Path(__file__).resolve().parents[1] / "checkpoints" / "released"
COMMANDS = {
    "checkpoints": ("{run}", "--verify"),
    "evaluate": ("{run}", "--json"),
    "status": ("--output-path", "{folder}"),
    "train": ("resume={run}", "trainer.max_updates=3"),
}


def _beside(place: Any, key: Any) -> None:
    other = copy.deepcopy(place[key])
    place.update({f"{key}_of_then": other}) if isinstance(place, dict) else place.append(other)


WAYS: dict[str, Callable[[Any, Any], object]] = {
    "without": lambda place, key: place.pop(key),
    "under another name": lambda place, key: (_beside(place, key), place.pop(key)),
    "beside another": _beside,
    "twice": lambda place, key: place.__setitem__(key, [place[key]] * 2),
    "as text": lambda place, key: place.__setitem__(key, str(place[key])),
    "null": lambda place, key: place.__setitem__(key, None),
    "in an object": lambda place, key: place.__setitem__(key, {"value": place[key]}),
}


def differ(path: Path, rng: random.Random) -> str:
    """Change one entry of a file of a run; return a description of the change."""
    is_tensors = path.suffix == ".safetensors"
    content = load_file(path) if is_tensors else yaml.safe_load(path.read_text())
    kept = {name: content.pop(name) for name in ("sha256", "meta_sha256") if name in content}
    places = [content]
    for place in places:
        parts = place.values() if isinstance(place, dict) else place
        places += [part for part in parts if isinstance(part, dict | list) and part]
    place, way = rng.choice(places), rng.choice(list(WAYS)[: 4 if is_tensors else None])
    key = rng.choice(list(place) if isinstance(place, dict) else range(len(place)))
    WAYS[way](place, key)
    if is_tensors:
        save_file({n: torch.stack(one) if isinstance(one, list) else one for n, one in content.items()}, path)
    else:
        path.write_text(yaml.safe_dump(content) if path.suffix == ".yaml" else json.dumps({**content, **kept}))
    return f"{path.name}: {key} {way}"


class Museum(Room):
    """The released runs, and the results of the commands on each unchanged run."""

    def __init__(self, folder: Path) -> None:
        import noether.training.evaluation  # noqa: F401
        import noether.training.train  # noqa: F401  Imported once here, instead of in every fork.

        super().__init__(folder)
        self.expected = {}
        for version in sorted(path.name for path in RELEASED.iterdir()):
            self._fresh(version)
            self.expected[version] = self._try()
            assert {code for code, *_ in self.expected[version].values()} == {0}, self.expected[version]

    def _fresh(self, version: str) -> Path:
        run = self.run_folder("run").path
        shutil.rmtree(run, ignore_errors=True)
        return Path(shutil.copytree(RELEASED / version / "run", run))

    def _try(self) -> dict[str, tuple[int, str, object]]:
        """Run the commands; return by name each one's exit code, output, and weights or metrics (else None)."""
        run, log, found = self.run_folder("run"), self.folder / "command.log", {}
        for name, words in COMMANDS.items():
            log.unlink(missing_ok=True)
            code = run_command(
                [name, *(word.format(run=run.path, folder=self.folder) for word in words)], log, self.environ
            )
            said, numbers = log.read_text(errors="replace"), None
            if code == 0 and name == "evaluate":
                numbers = json.loads(said[said.index("{\n") :])["metrics"]
            elif code == 0 and name == "train":
                numbers = {file: digest for file, digest in final_hashes(run).items() if file in WEIGHTS.values()}
            found[name] = code, said, numbers
        return found

    def run_case(self, number: int) -> tuple[str, list[str]]:
        rng, wrong = random.Random(number), []
        version = rng.choice(sorted(self.expected))
        run = self._fresh(version)
        (checkpoint,) = list_checkpoints(run / "checkpoints")
        story = differ(rng.choice([run / "config.yaml", *sorted(checkpoint.path.iterdir())]), rng)
        meta = json.loads((checkpoint.path / "meta.json").read_text())
        files = {name: [(checkpoint.path / name).read_bytes()] for name in meta.pop("sha256")}
        del meta["meta_sha256"]
        write_checkpoint(run / "checkpoints", 2, files, {key: meta[key] for key in meta if key != "updates"})
        for command, (code, said, numbers) in self._try().items():
            _, before, expected = self.expected[version][command]
            refused = re.search(r"^\S.*\[([a-z0-9-]+)\]$", said, re.MULTILINE)
            if NO_TRACEBACK in said or code not in (0, 2) or (code == 2 and refused is None):
                wrong.append(f"{command}: exit code {code}\n{said}")
            elif (command == "checkpoints" and code) or "is damaged" in said:
                wrong.append(f"{command}: reports damage\n{said}")
            elif code == 0 and numbers != expected and said.count("\n") <= before.count("\n"):
                wrong.append(f"{command}: different weights or metrics without a message\n{said}")
        return f"{version}: {story}", wrong


if __name__ == "__main__":
    words = "old programs, {failed} tracebacks, wrong words or differences"
    sys.exit(harness(__doc__, 150, lambda folder: Museum(folder).run_case, words))

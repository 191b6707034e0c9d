"""Let two users of a group resume each other's runs in a group folder: file permissions must not lock either out.

    python -m tests.faults.groups --cases 40 [--first 0] [--record FILE]

Needs root, to become each user in turn. The group folder has mode 2770, as administrators set it up. A run in it is
started two to four times, by the two users in turn. Every start but the last is killed before one of its operations on
the run folder, or receives SIGTERM; then the other user reads the run by a command. The last start must end like an
undisturbed run, and the group must be able to read and write every file. In every fourth case, the umask does not let
the group write: the second user's start must be refused with a message, and no file may change.
"""

import os
import random
import shutil
import signal
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.users import GROUP, USERS, become, in_open_mounts

from .room import LIMIT_S, NO_TRACEBACK, REPOSITORY, CalmRoom, final_hashes, history
from .series import options, run_series
from .victim import Operations, Victim, die, fork

COMMANDS = ("status", "logs", "report", "checkpoints", "evaluate", "settings", "cancel")


class GroupFolder(CalmRoom):
    """A test folder with an undisturbed run, and a folder that the two users of a group share."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "tracker.tensorboard=true", "tracker.report=true")
        folder.chmod(0o711)
        self.group = folder / "group"
        self.group.mkdir()
        os.chown(self.group, -1, GROUP)
        self.group.chmod(0o2770)
        for user in USERS:  # Each user has a home folder, because caches are private.
            home = folder / str(user)
            shutil.copytree(folder / "cache", home / "cache")
            for path in (home, *home.rglob("*")):
                os.chown(path, user, user)

    def act(self, user: int, name: str, words: list[str], mask: int, before: Callable[[], object] = int) -> Victim:
        home = self.folder / str(user)
        environ = {**self.environ, "HOME": str(home), "TMPDIR": str(home), "XDG_CACHE_HOME": str(home / "cache")}

        def command() -> None:
            from noether.cli.entry import main

            become(user, mask)
            before()
            main(words)

        return fork(command, self.log(name), environ)

    def train(self, user: int, name: str, mask: int, operation: int | None = None) -> Victim:
        run = self.group / name
        words = ["train", "--hp", str(self.settings), f"output_path={self.group}", f"run_id={name}", "resume=auto"]
        return self.act(
            user, name, words, mask, lambda: Operations(run, lambda number: die() if number == operation else None)
        )

    def run_case(self, seed: int) -> tuple[str, list[str]]:
        """Start a run as one user, then as the other; return a description and a list of failures."""
        rng, name, wrong = random.Random(seed), f"run-{seed}", []
        users, mask, story = rng.sample(USERS, 2), 0o022 if seed % 4 == 3 else 0o007, []
        for start in range(rng.randint(1, 3)):
            user, other = users[start % 2 if mask == 0o007 else 0], users[start % 2 - 1 if mask == 0o007 else 1]
            operation, told = rng.randint(1, self.calm.operations), rng.random() < 0.3
            victim = self.train(user, name, mask, None if told else operation)
            if told and victim.wait(rng.uniform(0.3, 2.0)) is None:
                victim.kill(signal.SIGTERM)
            story.append(f"{user} stopped: {victim.wait(LIMIT_S)}" if told else f"{user} killed at {operation}")
            victim.wait(LIMIT_S)
            if (self.group / name / "config.yaml").exists():
                command = rng.choice(COMMANDS)
                named = ["--output-path", str(self.group)] if command == "status" else [str(self.group / name)]
                code = self.act(other, name, [command, *named], mask).wait(LIMIT_S)
                story.append(f"{other} {command}: {code}")
            if mask == 0o022:
                wrong += self._refused(other, name)
        last = users[rng.randint(0, 1) if mask == 0o007 else 0]
        code = self.train(last, name, mask).wait(LIMIT_S)
        story.append(f"{last} to the end: {code}")
        return "; ".join(story), [*wrong, *self._wrong(name, code, mask)]

    def _refused(self, other: int, name: str) -> list[str]:
        """Start a run as the second user, to whom its files are closed; return a list of failures."""
        run = self.group / name
        if not run.exists():
            return []
        before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        code = self.train(other, name, 0o022).wait(LIMIT_S)
        changed = before != {path: path.stat().st_mtime_ns for path in run.rglob("*")}
        return [f"the second user's start: exit code {code}, changed files: {changed}"] if code != 2 or changed else []

    def _wrong(self, name: str, code: int | None, mask: int) -> list[str]:
        folder, wrong = self.run_folder(f"group/{name}"), []
        said = self.log(name).read_text(errors="replace")
        if NO_TRACEBACK in said or code != 0:
            wrong.append("a traceback, or an unexpected exit code")
        if final_hashes(folder) != self.calm.hashes or history(folder) != self.calm.rows:
            wrong.append("different weights, or a different history")
        for path in (folder.path, *folder.path.rglob("*")):
            about = path.stat()
            asked = (0o2770 if path.is_dir() else 0o660) if mask == 0o007 else (0o2755 if path.is_dir() else 0o644)
            if stat.S_IMODE(about.st_mode) != asked or about.st_gid != GROUP:
                wrong.append(f"{path.relative_to(folder.path)} has mode {about.st_mode:o}, group {about.st_gid}")
        if not wrong:
            shutil.rmtree(folder.path)
        return [f"{text}\n{said}" for text in wrong]


def main() -> int:
    given = options(__doc__, 40).parse_args()
    in_open_mounts(REPOSITORY)
    temporary = Path(tempfile.gettempdir())
    closed = [folder for folder in (temporary, *temporary.parents) if not folder.stat().st_mode & 0o001]
    with tempfile.TemporaryDirectory(prefix="groups-", dir=closed[-1].parent if closed else None) as scratch:
        return run_series(
            given, GroupFolder(Path(scratch)).run_case, summary="group folders, {failed} differences or tracebacks"
        )


if __name__ == "__main__":
    sys.exit(main())

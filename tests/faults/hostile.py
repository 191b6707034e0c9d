"""Give endless YAML to the readers of settings, and hostile environment variables to the commands.

    python -m tests.faults.hostile --cases 400 [--first 0] [--record FILE]

A case with an even number gives one YAML text to one reader, which must read it, or refuse it with a message, within
LIMIT_S. A case with an odd number runs one command with some variables set; it must end without a traceback.
"""

import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from noether.common.errors import RequestError
from noether.config.compose import load_config, read_dumped
from noether.physics.cases.case_map import map_text, parse_map
from noether.physics.cases.tables import read_numbers
from noether.watch.inside import flat_settings

from .fuzz import LIMIT_S, limit
from .room import NO_TRACEBACK, REPOSITORY
from .series import harness


def growing(first: str, pattern: str) -> Callable[[int], str]:
    """Return a function that makes a text of a given size; each line refers to the line before, {0} in `pattern`."""
    return lambda size: (
        first + "".join(f"a{n}: " + pattern.format(f"a{n - 1}", f"a{n}") + "\n" for n in range(1, 8 + size))
    )


YAML: dict[str, Callable[[int], str]] = {
    "aliases": growing("a0: &a0 [x, x, x]\n", "&{1} [" + "*{0}, " * 9 + "]"),
    "merge-keys": growing("a0: &a0 {x: 1}\n", "&{1} {{<<: [" + "*{0}, " * 9 + "], {1}: 1}}"),
    "long-texts": lambda size: f"a: &a {'y' * 300 * size}\nb: [{'*a, ' * 10_000}]\n",
    "levels-by-aliases": growing("a0: &a0 []\n", "&{1} " + "[" * 20 + "*{0}" + "]" * 20),
    "holds-itself": lambda size: f"a: &a {'[' * (size % 40)}*a{']' * (size % 40)}\n",
    "merges-itself": lambda size: "a: &a {<<: *a}\n" * (size % 2 + 1),
    "interpolated-texts": growing("a0: x\n", "${{{0}}}${{{0}}}"),
    "interpolated-lists": growing("a0: [x, x]\n", "['${{{0}}}', '${{{0}}}', '${{{0}}}']"),
    "interpolated-levels": lambda size: f"a: '{'${' * size}{'}' * size}'\n",
    "brackets": lambda size: f"a: {'[{a: ' * 50 * size}\n",
    "values": lambda size: f"a: [{'[], ' * 500 * size}]\n",
    "keys": lambda size: "".join(f"k{n}: 1\n" for n in range(500 * size)),
    "keys-of-one-hash": lambda size: "".join(f"{n * (2**61 - 1)}: 1\n" for n in range(100 * size)),
    "comments": lambda size: "# as it should be\n" * 10_000 * size,
    "digits": lambda size: f"seed: {'9' * 60 * size}\n",
    "hexadecimal": lambda size: f"seed: 0x{'f' * 60 * size}\n",
    "sixties": lambda size: f"seed: 1{':59' * 500 * size}\n",
    "documents": lambda size: "--- {}\n" * 100 * size,
    "odd-tags": lambda size: "".join(f"? !!{tag} ''\n: !!{tag} x\n" for tag in TAGS[size % len(TAGS) :]),
}
TAGS = (
    *("int", "float", "bool", "timestamp", "binary", "omap", "pairs", "set", "python/name:os.system", "value"),
    "merge",
)
READERS: dict[str, Callable[[Path], object]] = {
    "--hp": lambda path: load_config(hp=path),
    "a run": read_dumped,
    "the page": lambda path: flat_settings(path.parent, path),
    "a map": lambda path: parse_map(map_text(str(path)), str(path)),
    "numbers": read_numbers,
}
NAMES = (
    *("OMP_NUM_THREADS", "MASTER_PORT", "MASTER_ADDR", "RANK", "WORLD_SIZE", "LOCAL_RANK", "COLUMNS", "LINES", "TERM"),
    *("SLURM_JOB_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_JOB_NODELIST", "SLURM_GPUS_ON_NODE", "LSB_JOBID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "CUDA_VISIBLE_DEVICES", "JOB_COMPLETION_INDEX"),
    *("TMPDIR", "HOME", "USER", "PATH", "LANG", "TZ", "XDG_STATE_HOME", "XDG_CACHE_HOME", "PYTHONIOENCODING"),
    *("GOMP_SPINCOUNT", "NCCL_DEBUG", "NCCL_SOCKET_IFNAME", "NOETHER_IMAGE_DIGEST", "NO_COLOR", "SLURM_CPUS_PER_TASK"),
)
VALUES = (
    *("", " ", "0", "-1", "1e9", "0x10", "nan", "abc", "1,2", "9" * 20, "9" * 5000, "-" + "9" * 5000, "٣", "²"),
    *("\x1b[31mred", "a\nb", "\udcff", "/dev/null", "/nowhere/" + "x" * 300, "x" * 100_000, "[0-99999999]", "a[1-"),
    "%n$(id)",
)
COMMANDS = (
    *(("settings",), ("plan",), ("status", "--output-path", "."), ("submit", "--print"), ("help",), ("describe",)),
    *(("train", "--dry-run", "trainer.max_updates=1"), ("data", "inspect", "."), ("logs", "none")),
    ("doctor", "--help"),
)


class Scene:
    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run_case(self, number: int) -> tuple[str, list[str]]:
        rng = random.Random(number)
        return self._variables(rng) if number % 2 else self._yaml(rng)

    def _yaml(self, rng: random.Random) -> tuple[str, list[str]]:
        name, reader, size = rng.choice(list(YAML)), rng.choice(list(READERS)), rng.choice((1, 2, 10, 100))
        file = self.folder / "mine.yaml"
        file.write_text("seed: 1\n" * rng.randrange(2) + YAML[name](size))
        story = f"{reader}: {name} of size {size}"
        try:
            with limit(LIMIT_S):
                READERS[reader](file)
        except RequestError as error:
            return f"{story}: {error.code}", []
        return f"{story}: read", []

    def _variables(self, rng: random.Random) -> tuple[str, list[str]]:
        environ = {name: rng.choice(VALUES) for name in rng.sample(NAMES, rng.choice((1, 1, 2, 4)))}
        command = rng.choice(COMMANDS)
        given = {**os.environ, "PYTHONPATH": str(REPOSITORY), **environ}
        story = f"{' '.join(command)}: {', '.join(f'{name}={value[:20]!a}' for name, value in environ.items())}"
        process = [sys.executable, "-m", "noether", *command]
        try:
            ended = subprocess.run(process, env=given, cwd=self.folder, capture_output=True, timeout=120)
        except subprocess.TimeoutExpired:
            return story, ["the command did not end within 120 s"]
        said = (ended.stdout + ended.stderr).decode(errors="replace")
        wrong = [said[-1500:]] if NO_TRACEBACK in said or ended.returncode not in (0, 1, 2, 75) else []
        return f"{story}: {ended.returncode}", wrong


if __name__ == "__main__":
    words = "hostile cases, {failed} endless or tracebacks"
    sys.exit(harness(__doc__, 400, lambda folder: Scene(folder).run_case, words))

"""Extract the commands of README and docs, find what each one needs, run them, and write a transcript.

    python -m tests.documented [--full] [--out FILE] [PAGE ...]     (make transcript)

Each page's commands run unchanged, in the page's order, in a folder of their own. Built-in data and models are made
small, as in the tests; --full keeps their real sizes and also runs slow commands. The exit code is 1 if a command fails
although everything it needs is there.
"""

import argparse
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
GENERATED = ("commands.md", "configuration.md", "errors.md", "lint-rules.md")
PROGRAMS = ("noether", "noether-train", "noether-train-submit-job", "make", "docker", "apptainer", "srun", "python",
            "gh", "cosign", "source", "OMP_NUM_THREADS=1")  # fmt: skip
DATA = (
    "dataset.train_shapes=20 dataset.test_shapes=5 dataset.surface_points=48 dataset.volume_points=40 "
    "dataset.geometry_points=32 dataset.points_per_update.surface=24 dataset.points_per_update.volume=16 "
)
MODEL = f"{DATA} model.dim=32 model.heads=2 model.supernodes=8 model.radius=200.0"
SMALL = f"{MODEL} model.encoder_depth=1 model.decoder_depth=1"
AB_UPT = f"{MODEL} model.physics_depth=1 model.branch_depth=1 trainer.max_updates=4"
ALONE = "tracker.report=false"
"""Setting that turns off the report, which takes as long as such a short run; other commands of README draw it."""
LIMIT_S, FULL_LIMIT_S = 400, 7200
FOLDERS = ("configs", "examples", "benchmarks", "ci")
LONG = "more time than a transcript has: --full runs it"


def _works(*command: str) -> Callable[[], bool]:
    @cache
    def ask() -> bool:
        if shutil.which(command[0]) is None:
            return False
        try:
            return subprocess.run(command, capture_output=True, timeout=15).returncode == 0
        except subprocess.TimeoutExpired:  # A client waits for a server that is not running.
            return False

    return ask


def _there(path: str) -> Callable[[], bool]:
    return lambda: Path(path).exists()


NEEDS: tuple[tuple[str, str, str, Callable[[], bool]], ...] = (
    # page, command (regular expressions), what the command needs, whether that is available
    (r"", r"^gh |^cosign ", "a release that was published", lambda: False),
    (r"", r"--environment=|--container-image=", "a cluster with a container engine of its own", lambda: False),
    (r"", r"\$LIBFABRIC|srun .*--gpus-per-task", "a cluster with Slingshot", lambda: False),
    (r"", r"^docker ", "a docker engine", _works("docker", "info")),
    (r"", r"^(srun .*)?apptainer ", "Apptainer, and the image", _works("apptainer", "--version")),
    (r"", r"\+accelerator=gpu|--gpus", "an NVIDIA GPU", _works("nvidia-smi", "-L")),
    (r"", r"\| sbatch|^srun ", "a Slurm cluster", _works("sinfo")),
    (r"slurm\.md", r"^(?!.*--dry-run)", "a Slurm cluster", _works("sinfo")),
    (r"shapenet\.md|models\.md", r"shapenet_car|runs/cars", "ShapeNet-Car in /data/shapenet_car",
     _there("/data/shapenet_car")),
    (r"watch\.md", r"^noether watch", "runs to follow, and Ctrl-C to end it (tests/watch)", lambda: False),
    (r"own-data\.md", r"ahmed", "the cases of a simulation in ahmed (AhmedML)", lambda: False),
    (r"own-data\.md", r"runs/NAME", "a run on cases of your own", lambda: False),
    (r"", r"/data/shapenet_car", "ShapeNet-Car in /data/shapenet_car", _there("/data/shapenet_car")),
    (r"", r"^make test", LONG, lambda: False),
    (r"", r"benchmarks/|trainer\.max_updates=500", LONG, lambda: False),
)  # fmt: skip
"""The first row that matches a command is used. A command that matches no row can run on every machine."""


def pages() -> list[Path]:
    """Return README and the pages that are not generated."""
    docs = sorted((REPOSITORY / "docs").glob("*.md"))
    return [REPOSITORY / "README.md", *(page for page in docs if page.name not in GENERATED)]


def commands(path: Path, *programs: str) -> list[str]:
    """Return the commands in a page's code blocks that start with one of the programs, without their comments."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), re.DOTALL | re.MULTILINE)
    blocks = [block for language, block in found if language in ("", "sh")]
    lines = [line.partition(" #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line.partition(" ")[0] in programs and " " in line]


def python_blocks(path: Path) -> dict[str, str]:
    """Return a page's Python code by the second-level heading above it; "" before the first heading."""
    sections = re.split(r"(?m)^## (.*)\n", f"## \n{path.read_text()}")[1:]
    blocks = (re.findall(r"(?ms)^```python\n(.*?)^```", text) for text in sections[1::2])
    return {name: "".join(found) for name, found in zip(sections[::2], blocks, strict=True)}


def needs(page: str, line: str, *, full: bool = False) -> str:
    """Return the name of the thing that a command needs and this machine lacks; "" if the command can run."""
    for where, what, needed, is_here in NEEDS:
        if re.search(where, page) and re.search(what, line):
            if needed == LONG:
                return "" if full else LONG
            return "" if is_here() else needed
    return ""


def make_workplace(folder: Path, environ: dict[str, str], *, full: bool = False) -> dict[str, str]:
    """Write the files that the commands use to a folder; return an environment with `noether` on the PATH."""
    (folder / "my.yaml").write_text("seed: 3\n")
    (folder / "package").mkdir()
    for script in ("train.py", "package/train.py"):
        (folder / script).write_text("import torch.distributed as dist\ndist.init_process_group('gloo')\n")
    (folder / "cars.yaml").write_text("defaults: [/train, _self_]\nseed: 3\n")
    (folder / "train.py").touch()
    (folder / "my_model.py").write_text(python_blocks(REPOSITORY / "docs" / "tasks.md")["Your own model"])
    (folder / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --ntasks=1 --cpus-per-task=2\nsrun -K noether train\n")
    for name in (*FOLDERS, "Dockerfile", "apptainer.def", "Makefile", "constraints.txt"):
        (folder / name).symlink_to(REPOSITORY / name)
    programs = folder / "bin"
    programs.mkdir()
    own = '*mnist*|*pendulum*) small="trainer.max_epochs=1";; *examples*) ;;'
    own += f' train*dataset=cases*) small="trainer.max_updates=4 {ALONE}";;'
    own += f' *ab_upt*) small="{AB_UPT} {ALONE}";;'
    # A 90 % interval needs at least nine cases for its calibration; this fraction holds out ten.
    own += f' *-m*seed=1,2,3*max_epochs*) small="{SMALL} {ALONE} dataset.validation_fraction=0.5";;'
    small = f'{own} train*trainer.max_*|plan*) small="{SMALL} {ALONE}";;'
    small += f' train*) small="{SMALL} {ALONE} trainer.max_epochs=8";;'
    for name, verb in (("noether", ""), ("noether-train", "train "), ("noether-train-submit-job", "submit ")):
        program = programs / name
        start = f'set -- {verb}"$@"\n' if verb else ""
        choose = "" if full else f'case "$*" in {small} esac\n'
        run = f'exec {shlex.quote(sys.executable)} -m noether "$@" $small'
        program.write_text(f"#!/bin/sh\nsmall=\n{start}{choose}{run}\n")
        program.chmod(0o755)
    python, fewer = programs / "python", "" if full else 'case "$*" in *--cases*) set -- "$@" --cases 12;; esac\n'
    python.write_text(f'#!/bin/sh\n{fewer}exec {shlex.quote(sys.executable)} "$@"\n')
    python.chmod(0o755)
    path = f"{programs}{os.pathsep}{environ['PATH']}"
    return {**environ, "PATH": path, "PYTHONPATH": str(REPOSITORY)}


def run_page(page: Path, *, full: bool) -> tuple[list[str], int]:
    """Run a page's commands; return the transcript's lines and the number of failed commands."""
    name, lines, failed = str(page.relative_to(REPOSITORY)), [], 0
    with tempfile.TemporaryDirectory(prefix="noether-transcript-") as scratch:
        environ = make_workplace(Path(scratch), dict(os.environ), full=full)
        for line in commands(page, *PROGRAMS):
            missing = needs(name, line, full=full)
            if missing:
                lines += [f"### `{line}`", "", f"Not run here. It needs {missing}.", ""]
                continue
            limit = FULL_LIMIT_S if full else LIMIT_S
            code, said, took_s = _make(line) if line.startswith("make ") else _run(line, scratch, environ, limit)
            failed += code != 0
            print(f"{'ok    ' if code == 0 else 'FAILED'} {name}: {line}", flush=True)
            last = [text for text in said.rstrip().splitlines() if text.strip()][-5:]
            result = f"exit code {code}, {took_s:.0f} s{'' if code == 0 else ', **failed**'}"
            lines += [f"### `{line}`", "", result, "", "```text", *last, "```", ""]
    return ([f"## {name}", "", *lines] if lines else []), failed


@cache
def _make(line: str) -> tuple[int, str, float]:
    """Run a make command in the checkout; if several pages contain it, run it only once."""
    return _run(line, str(REPOSITORY), dict(os.environ), FULL_LIMIT_S)


def _run(line: str, folder: str, environ: dict[str, str], limit_s: float) -> tuple[int, str, float]:
    """Run a command in bash; return its exit code (124 if it exceeded the limit), its output, and its duration."""
    began = time.monotonic()
    process = subprocess.Popen(
        ["bash", "-c", line], cwd=folder, env=environ, text=True, errors="replace",
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    try:
        said = process.communicate(timeout=limit_s)[0]
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        return 124, process.communicate()[0] + f"\nnot within {limit_s:g} s", limit_s
    return process.returncode, said, time.monotonic() - began


def main() -> int:
    """Write the transcript; return 1 if a command failed."""
    parser = argparse.ArgumentParser(description="Runs every command of README and docs.")
    parser.add_argument("--full", action="store_true", help="as they stand, and what takes longer too")
    parser.add_argument("--out", type=Path, default=Path("transcript.md"))
    parser.add_argument("pages", nargs="*", type=Path)
    asked = parser.parse_args()
    chosen = [page.resolve() for page in asked.pages] or pages()
    parts, failed = [], 0
    for page in chosen:
        lines, wrong = run_page(page, full=asked.full)
        parts += lines
        failed += wrong
    size = "as they stand" + "; behind them the built-in data and its models are made small" * (not asked.full)
    head = ["# Every command of README and docs", "", f"Run {size}. Commands that failed: {failed}.", ""]
    asked.out.write_text("\n".join([*head, *parts]))
    print(f"{asked.out}: {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

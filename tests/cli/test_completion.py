"""Completion needs only the standard library, and offers the right candidates in bash, zsh and fish."""

import re
import sys
from pathlib import Path

import pytest
from completion_table import completion_table
from conftest import REPOSITORY
from processes import converse, find_program, lay, run_to_end

from noether.cli.completing import complete, split_line


@pytest.fixture
def folder(tmp_path: Path, monkeypatch) -> Path:
    lay(
        tmp_path,
        dict.fromkeys(("runs/cars/config.yaml", "my.yaml", "job.sbatch", "two words.vtu", ".hidden", "train.py"), ""),
    )
    monkeypatch.chdir(tmp_path)
    return tmp_path


CASES = {
    "verb": ("noether tra", ["train"]),
    "second-word-of-a-group": ("noether data p", ["prepare"]),
    "flag": ("noether train --dry", ["--dry-run"]),
    "setting-as-a-flag": ("noether train --dev", ["--devices"]),
    "section": ("noether plan traine", ["trainer=", "trainer."]),
    "choice-of-a-setting": ("noether train accelerator=", ["accelerator=auto", "accelerator=gpu", "accelerator=cpu",
                                                          "accelerator=mps"]),
    "choice-after-a-flag": ("noether train --accelerator g", ["gpu"]),
    "option-of-a-group": ("noether train optimizer=a", ["optimizer=adamw", "optimizer=adamw_short"]),
    "experiment": ("noether train +experiment/el", ["+experiment/ellipsoid="]),
    "run": ("noether evaluate ", ["runs/cars"]),
    "run-to-resume": ("noether train resume=runs/", ["resume=runs/cars"]),
    "settings-file": ("noether train --hp ", ["my.yaml", "runs/"]),
    "split": ("noether evaluate runs/cars --split t", ["test", "train"]),
    "mesh": ("noether predict runs/cars --mesh two", ["two words.vtu"]),
    "folder": ("noether train output_path=r", ["output_path=runs/"]),
    "help-of-a-section": ("noether help mod", ["model"]),
    "script": ("noether run --devices 0,1 ", ["accelerator=", "devices=", "master_port=", "nodes=", "node_rank=",
                                              "master_addr=", "runs/", "train.py"]),
    "flag-of-a-launch": ("noether plan run --d", ["--dry-run", "--devices", "--distributed."]),
    "script's-own-word": ("noether run train.py tw", ["two words.vtu"]),
    "word-of-a-module": ("noether run -m=pkg.train tw", ["two words.vtu"]),
    "nothing-known": ("noether nonsense ", []),
    "open-quote": ("noether lint 'jo", ["job.sbatch"]),
}  # fmt: skip


@pytest.mark.parametrize(("line", "found"), CASES.values(), ids=CASES)
def test_candidates(line: str, found: list[str], folder: Path) -> None:
    assert complete(split_line(line)) == found


def test_the_table_is_the_schema_s() -> None:
    assert (REPOSITORY / "noether/cli/completion.txt").read_text() == completion_table(), "run `make docs`"


def test_only_the_standard_library_is_imported(environ) -> None:
    script = (
        "import sys\nfrom noether.cli import main\n"
        "try:\n    main(['__complete', 'bash', 'noether train trainer.'])\nexcept SystemExit:\n    pass\n"
        "roots = {name.partition('.')[0] for name in sys.modules}\n"
        "print(sorted(roots - set(sys.stdlib_module_names) - {'noether', '__main__'}), file=sys.stderr)"
    )
    # With -S, no path file (.pth) is read: those of other packages may import any module.
    done = run_to_end([sys.executable, "-S", "-c", script], {**environ, "PYTHONPATH": str(REPOSITORY)}, limit_s=60)
    assert "trainer.max_epochs=" in done.stdout
    assert done.stderr == "[]\n"


def test_an_unknown_shell_is_answered(noether) -> None:
    done = noether("completion", "tcsh")
    assert (done.code, "fix       noether completion bash" in done.err) == (2, True)


@pytest.fixture
def on_path(folder: Path, environ: dict[str, str]) -> dict[str, str]:
    """Return an environment with `noether` on the PATH."""
    program = folder / ".bin" / "noether"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m noether "$@"\n')
    program.chmod(0o755)
    more = {"PATH": f"{program.parent}:{environ['PATH']}", "PYTHONPATH": str(REPOSITORY), "TERM": "vt100"}
    return {**environ, **more, "HOME": str(folder)}


TYPED = {
    "verb": ("noether tra", "noether train ", "train"),
    "dotted-key": ("noether train trainer.max_ep", "noether train trainer.max_epochs=", "trainer.max_epochs="),
    "choice": ("noether train accelerator=g", "noether train accelerator=gpu ", "accelerator=gpu"),
    "experiment": (
        "noether train +experiment/ellipsoid=q",
        "noether train +experiment/ellipsoid=quick ",
        "+experiment/ellipsoid=quick",
    ),
    "blank": ("noether predict x --mesh tw", "noether predict x --mesh two\\ words.vtu ", "two words.vtu"),
}
"""The text typed before Tab, the line afterwards, and the word as fish lists it."""
START = {
    "bash": (["--norc", "--noprofile", "-i"], "source <(noether completion bash)\n"),
    "zsh": (["-f", "-i"], "bindkey -e; autoload -U compinit; compinit -D -u; source <(noether completion zsh)\n"),
}


@pytest.mark.slow
@pytest.mark.parametrize("shell", START)
def test_a_shell_completes_what_is_typed(shell: str, on_path: dict[str, str], folder: Path) -> None:
    """Press Tab after each line, then let the shell print the completed line."""
    arguments, setup = START[shell]
    lines = [f"{typed}\t\x01print -r -- '<\x05>'\n" if shell == "zsh" else f"{typed}\t\x01printf '%s\\n' '<\x05>'\n"
             for typed, _, _ in TYPED.values()]  # fmt: skip
    _, said = converse([find_program(shell, shell), *arguments], setup + "".join(lines) + "exit\n", on_path)
    # zsh removes the space after a word when the cursor moves over the line.
    expected = [whole.rstrip() if shell == "zsh" else whole for _, whole, _ in TYPED.values()]
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\r", "", said)
    assert re.findall(r"\n<([^>\n]*)>", shown) == expected, said


@pytest.mark.slow
@pytest.mark.parametrize(("typed", "_", "word"), TYPED.values(), ids=TYPED)
def test_fish_completes_what_is_typed(typed: str, _: str, word: str, on_path: dict[str, str], folder: Path) -> None:
    script = f"noether completion fish | source; complete -C {typed!r}"
    done = run_to_end([find_program("fish", "fish"), "--no-config", "-c", script], on_path, cwd=folder)
    assert done.stdout.splitlines() == [word]

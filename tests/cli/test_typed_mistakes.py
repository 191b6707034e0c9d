"""A newcomer's typing mistakes, the fix that each error shows, and the result of typing that fix.

`train` runs until it has made its plan, `report` until it would write its page, and commands that use a model until
they would start the process that loads it.
"""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from processes import lay

from noether.checkpoints.run_settings import load_run_config
from noether.cli.binding import bind
from noether.cli.entry import dispatch
from noether.common.errors import RequestError
from noether.config.explain import SECTIONS, other_words, settings
from noether.config.sweep import expand_sweep
from noether.jobs.job import describe_job

KINDS: dict[str, dict[str, list[str]]] = {}
"""The fixes of each typed line, by heading of typed.txt. A final "~" means that the last fix has a placeholder."""
for row in Path(__file__).with_name("typed.txt").read_text().splitlines():
    if re.match(r"# .*[.]$", row):
        typed = KINDS.setdefault(row, {})
    elif row and row[0] != "#":
        line, *fixes = re.split(" [=~]> ", row)
        typed[line] = [*fixes, *["~"] * (" ~> " in row)]


OWN = """
from torch import nn
from noether.training.callbacks import Callback
class Network(nn.Module):
    def forward(self, batch):
        return batch
class Watch(Callback):
    def begin(self, run):
        pass
def flat(peak, updates):
    return lambda update: peak
"""


def run_line(words: Sequence[str]) -> None:
    """Run a command line; `train` only makes its plan, which refuses the same mistakes. RequestError: for a mistake."""
    if "--help" in words or words[0] == "ls":
        return
    if words and words[0] in ("train", "submit"):
        command = bind(words)
        hp = command.flags.get("hp")
        if command.flags.get("multirun"):
            for run in expand_sweep(command.words):
                load_run_config(run, hp if isinstance(hp, str) else None)
            return
        flags = [word for name, value in command.flags.items() if name == "hp" for word in (f"--{name}", str(value))]
        words = ["plan", *flags, *command.words]
    dispatch(list(words))


def refused(words: Sequence[str]) -> RequestError:
    try:
        run_line(words)
    except RequestError as error:
        return error
    pytest.fail(f"{shlex.join(words)} is not refused")


def shown_fix(error: RequestError) -> str:
    """Return the first fix of an error, without the remark that six spaces separate from it."""
    return re.split(r" {6}|\n", error.fix)[0]


def with_fix(words: Sequence[str], error: RequestError) -> list[str]:
    """Return the command line of a user who has followed the first fix."""
    fix = shown_fix(error)
    leave = re.fullmatch(r"leave (.+) out", fix)
    if leave:
        gone = shlex.split(leave[1])
        return _without(words, lambda word: word in gone or _key(word) == _key(gone[0]))
    typed = shlex.split(fix)
    if typed[0] == "noether":
        return typed[1:]
    if typed[0] == "sbatch":
        return ["lint", *typed[1:]]
    if typed[0] in ("mv", "python"):  # The fix renames or converts the file.
        subprocess.run(fix.replace("python", sys.executable, 1), shell=True, check=True)
        return [re.sub(r"\.(toml|json)$", ".yaml", word) for word in words]
    if ": {" in fix:  # The fix is the new content of the file.
        Path(words[-1]).write_text(fix)
        return list(words)
    named = error.summary.split(" is not a run")[0]
    if len(typed) == 1 and named in words:  # The fix is another path.
        return [typed[0] if word == named else word for word in words]
    if typed[0] == "ls":
        return typed
    if typed[0] == "--hp" or error.code == "no-configuration-file":  # The fix names another file.
        words = _without(words, lambda word: _key(word) == "hp")
        words = [word for word in words if not word.endswith((".yaml", ".yml"))]
    seen = [error.seen.split(" (")[0], *shlex.split(error.seen.replace("'", "").split(" (")[0])]
    seen = [part for word in seen for part in (word, *word.split(", ")[:1], *word.split(" and "))]
    keys = {_key(word) for word in typed if not word.startswith("-")}
    keys |= {_key(word) for word in seen if "=" in word or word.startswith("--")}
    kept = _without(words, lambda word: _key(word) in keys or word in seen or word == typed[0].split("=")[0])
    return [*kept, *typed]


def _without(words: Sequence[str], is_gone) -> list[str]:
    """Return the words for which `is_gone` is false; the value of a removed flag is removed, too."""
    kept, queue = [], list(words[1:])
    while queue:
        word = queue.pop(0)
        if not is_gone(word):
            kept.append(word)
        elif word.startswith("-") and "=" not in word and queue and "=" not in queue[0] and queue[0][0] != "-":
            queue.pop(0)
    return [words[0], *kept]


def _key(word: str) -> str:
    key = word.lstrip("+~").partition("=")[0].partition(":")[0]
    return key.removeprefix("--").replace("-", "_") if key.startswith("--") else key


FILES = {
    "my.yaml": "seed: 1\n", "my.toml": "[trainer]\nmax_epochs = 3\n", "my.json": '{"seed": 1}\n',
    "dotted.yaml": "trainer.max_epochs: 3\n", "listed.yaml": "- seed: 1\n", "README.md": "hello\n",
    "car.stl": "solid\n", "job.sh": "#!/bin/bash\n#SBATCH --ntasks=2\nsrun noether train\n",
    "train.py": "import torch\n", "typed_package/own.py": OWN, "model.ckpt": "PK", "cases/a.txt": "",
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(train_in, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the runs `cars` and `one`."""
    run = train_in(tmp_path_factory.mktemp("typed") / "runs", "cars").path
    shutil.copytree(run, run.with_name("one"))
    return run.parent.parent


@pytest.fixture
def workspace(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to the folder of the runs, and replace the functions that would start a long task by stubs."""
    monkeypatch.chdir(trained)
    monkeypatch.syspath_prepend(trained)
    for place in ("training.evaluate_command", "physics.export.command", "physics.predict.shape_request"):
        monkeypatch.setattr(f"noether.{place}.run_here", lambda *request: 0)
    monkeypatch.setattr("noether.doctor.examine.doctor_here", lambda *request: 0)
    monkeypatch.setattr("noether.runs.report.page.write_report", lambda folder: folder.report)
    return trained


@pytest.mark.parametrize("kind", KINDS)
def test_the_fix_that_is_shown_works_when_it_is_typed(kind: str, workspace: Path) -> None:
    assert len(KINDS[kind]) >= 8
    for line, fixes in KINDS[kind].items():
        words = shlex.split(line)
        lay(workspace, FILES)
        for fix in fixes[: fixes.index("~") if "~" in fixes else None]:
            error = refused(words)
            assert shown_fix(error) == fix, line
            assert "put should" not in str(error), "the error has a sentence of pydantic"
            assert error.code != "unknown-key" or error.expected.count(",") < 12, "the list of keys is too long"
            words = words if "~" in fixes else with_fix(words, error)
        if "~" not in fixes:
            run_line(words)


def test_what_other_programs_call_a_setting_is_one() -> None:
    known = {*settings(), *SECTIONS}
    named = {name: line.partition(" ")[0].partition("=") for name, line in other_words()[0].items()}
    others = {name for name, (setting, equals, _) in named.items() if equals and setting not in known}
    assert {named[name][0] for name in others} == {"slurm.slurm_additional_parameters.WORD", "+experiment/mnist"}
    assert {*named} & {*settings()} == set(), "a mistyped name must not be a setting"
    assert {*other_words()[1]} - known == set()


@pytest.mark.parametrize("name", ["nodes", "node_rank", "master_addr"])
def test_submit_names_no_variable_that_nobody_set(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        describe_job([f"{name}=2"], None)
    assert (caught.value.code, caught.value.seen) == ("nodes-of-no-scheduler", f"{name}=2")
    assert "SLURM_" not in str(caught.value)

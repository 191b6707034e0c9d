"""Fire parses the words of a command; nothing runs until every word is bound to a parameter."""

import functools
import inspect
import shlex
import sys

import pytest
from conftest import REPOSITORY
from hypothesis import HealthCheck, given, settings, strategies
from processes import converse

from noether.cli import entry
from noether.cli.binding import bind, read_train_line
from noether.cli.commands import COMMANDS, CommandGroup, flags_of, verbs, words_of
from noether.common.container import fix_in_container
from noether.common.errors import RequestError
from tests.refusal import refusal

GUIDE = '+experiment/shapenet=upt +accelerator=gpu +devices="0,1,2,3" dataset_root=/data'
CASES = {
    "overrides": ("train +a=1 ~b c.d=2", ["+a=1", "~b", "c.d=2"], {}),
    "flag-between": ("train a=1 --hp x.yaml b=2", ["a=1", "b=2"], {"hp": "x.yaml"}),
    "leading-file": ("train x.yaml a=1", ["a=1"], {"hp": "x.yaml"}),
    "second-file-is-not-lost": ("train x.yaml --hp y.yaml", ["x.yaml"], {"hp": "y.yaml"}),
    "switch-does-not-eat-the-next-word": ("train --dry-run a=1", ["a=1"], {"dry_run": True}),
    "switch-with-a-value": ("train --dry-run True a=1 --json false", ["a=1"], {"dry_run": True, "json": False}),
    "switch-off-by-no": ("train --no-dry-run a=1", ["a=1"], {"dry_run": False}),
    "switch-off-in-fire's-way": ("train a=1 --nodry-run", ["a=1"], {"dry_run": False}),
    "one-letter": ("train -m seed=1,2 -d", ["seed=1,2"], {"multirun": True, "dry_run": True}),
    "one-letter-of-a-command-without-settings": ("logs -f r", ["r"], {"follow": True}),
    "one-letter-with-equals": ("train -d=false -j=true", [], {"dry_run": False, "json": True}),
    "word-as-a-flag": ("evaluate --run r --json", ["r"], {"json": True}),
    "parameters-of-a-case": ("predict r --set a=1 --set b=2", ["r"], {"set": "a=1,b=2"}),
    "parameters-with-equals": ("predict r --set=a=1 q --set b=2", ["r", "q"], {"set": "a=1,b=2"}),
    "set-with-other-hyphens": ("predict r -set a=1 --set b=2 ---set=c=3", ["r"], {"set": "a=1,b=2,c=3"}),
    "value-that-reads-as-an-override": ("train --run_id=seed=3", ["run_id=seed=3"], {}),
    "value-that-reads-as-True": ("predict r --set True --out=True", ["r"], {"set": "True", "out": "True"}),
    "several-runs": ("predict r q --mesh x.stl", ["r", "q"], {"mesh": "x.stl"}),
    "setting-with-commas": ("train --devices 0,1", ['devices="0,1"'], {}),
    "setting-with-a-list": ("train --optimizer.betas [0.9,0.95]", ["optimizer.betas=[0.9,0.95]"], {}),
    "setting-with-a-hyphen": ("train --trainer.max-epochs 3", ["trainer.max_epochs=3"], {}),
    "setting-with-one-hyphen": ("train -trainer.max_epochs=3 -seed 3", ["trainer.max_epochs=3", "seed=3"], {}),
    "settings-keep-their-order": ("train --seed 3 a=1 --nodes 2 b=3", ["a=1", "b=3", "seed=3", "nodes=2"], {}),
    "negative-number": ("train --seed -1", ["seed=-1"], {}),
    "number-as-it-was-typed": ("train a=1e-3 --optimizer.eps 1e-8", ["a=1e-3", "optimizer.eps=1e-8"], {}),
    "plan-for-another-machine": ("plan --visible-devices 0,1", [], {"visible_devices": "0,1"}),
    "nested": ("data prepare a b --skip-broken", ["a", "b"], {"skip_broken": True}),
    "lone-hyphen-is-a-word": ("lint - --json", ["-"], {"json": True}),
    "the-guide": (f"train --hp F.yaml {GUIDE}", shlex.split(GUIDE), {"hp": "F.yaml"}),
    "the-guide's-sweep": ("submit -m seed=1,2 ~key", ["seed=1,2", "~key"], {"multirun": True}),
    "a-group-and-a-setting-of-it": ("plan model=mlp --model.dim 64", ["model=mlp", "model.dim=64"], {}),
}


@pytest.mark.parametrize(("line", "words", "flags"), CASES.values(), ids=CASES.keys())
def test_command_lines(line, words, flags) -> None:
    call = bind(shlex.split(line))
    path = shlex.split(line)[: 2 if line.startswith("data") else 1]
    assert (call.verb, list(call.words), dict(call.flags)) == (" ".join(path), words, flags)
    assert call.function is verbs()[call.verb]


WRONG = {
    "trian seed=1": ("unknown-command", "noether train seed=1"),
    "fit": ("unknown-command", "noether train"),
    "frobnicate": ("unknown-command", "noether --help"),
    "--hp x.yaml train": ("unknown-command", "noether --help"),
    "data prepar a b": ("unknown-command", "noether data prepare a b"),
    "data frobnicate": ("unknown-command", "noether data"),
    "train --reest": ("unknown-flag", "--reset"),
    "train --dryrun": ("unknown-flag", "--dry-run"),
    "train -n": ("unknown-flag", "--dry-run"),
    "train -x 2": ("unknown-flag", "noether train --help"),
    "train --acelerator cpu": ("unknown-flag", "--accelerator cpu"),
    "train --gpus 2": ("unknown-flag", "devices=2"),
    "train --max_epochs 3": ("unknown-flag", "trainer.max_epochs=3"),
    "train --output runs": ("unknown-flag", "output_path=runs"),
    "train -c my.yaml": ("unknown-flag", "--hp my.yaml"),
    "evaluate runs/x --splt test": ("unknown-flag", "--split test"),
    "train --hp": ("flag-without-value", "--hp VALUE"),
    "train --hp --dry-run": ("flag-without-value", "--hp VALUE"),
    "train --trainer.compile": ("flag-without-value", "--trainer.compile VALUE"),
    "predict runs/x --set a=1 --set": ("flag-without-value", "--set VALUE"),
    "logs runs/x --norank": ("unknown-flag", "--rank VALUE"),
    "train --noseed": ("unknown-flag", "--seed VALUE"),
    "settings --no-tracker.report": ("unknown-flag", "tracker.report=false"),
    "plan --seed model=upt": ("flag-without-value", "--seed VALUE"),
    "plan --reset": ("unknown-flag", "noether plan --help"),
    "train --overrides a=1": ("unknown-flag", "noether train --help"),
    "predict runs/x --mesh x.stl --out=": ("flag-without-value", "--out VALUE"),
    "evaluate --run a --run b": ("flag-twice", "leave one --run out"),
    "train --hp a.yaml b=1 --hp=c.yaml": ("flag-twice", "leave one --hp out"),
    "train --self=1": ("unknown-flag", "noether train --help"),
    "logs runs/x --r 3": ("unknown-flag", "noether logs --help"),
    "version x": ("surplus-words", "noether version"),
    "report runs/x -1": ("surplus-words", "noether report runs/x"),
    "predict runs/x car.stl --scale 0.001": ("surplus-words", "noether predict runs/x --scale=0.001 --mesh car.stl"),
    "train evaluate --seed 1": ("two-commands", "noether evaluate --seed=1"),
    "train --task.fields {a:1} task.fields.a.weight=7": ("flag-and-override", "leave task.fields.a.weight=7 out"),
    "train --task.fields.a.weight 7 task.fields={a:1}": ("flag-and-override", "leave task.fields={a:1} out"),
    "train -- --hel": ("words-after-two-hyphens", "noether train --hel"),
    "cancel runs/x -- --trace": ("words-after-two-hyphens", "noether cancel runs/x"),
    "train --dry-run=perhaps": ("unreadable-word", "--dry-run"),
    "evaluate --json": ("missing-words", "noether evaluate runs/NAME --json"),
    "export runs/x": ("missing-words", "noether export runs/x OUT"),
    "completion": ("missing-words", "noether completion bash"),
    "evaluate runs/x validation": ("surplus-words", "noether evaluate runs/x --split validation"),
    "report runs/x more": ("surplus-words", "noether report runs/x"),
    "logs runs/x --follow 3": ("surplus-words", "noether logs runs/x --follow --rank 3"),
    "status runs": ("surplus-words", "noether status --output-path runs"),
    "cancel runs/x --__class__": ("unknown-flag", "noether cancel --help"),
    "export __doc__": ("missing-words", "noether export __doc__ OUT"),
    "train --name 'a b'": ("unknown-flag", "'run_id=a b'"),
    "checkpoints runs/x verify --verify": ("surplus-words", "noether checkpoints runs/x --verify"),
    f"status {'x' * 300}": ("surplus-words", f"noether status --output-path {'x' * 300}"),
    "noether train seed=1": ("unknown-command", "noether --help"),
    "tran --help": ("unknown-command", "noether train --help"),
    "trainer.max_epochs=3 seed=1": ("unknown-command", "noether train trainer.max_epochs=3 seed=1"),
    "data inspect cases out.yaml": ("surplus-words", "noether data inspect cases --out out.yaml"),
    "train --seed 1 seed=2": ("flag-and-override", "leave seed=2 out"),
    "train seed=1 -- --dry-run": ("words-after-two-hyphens", "noether train seed=1 --dry-run"),
}


@pytest.fixture
def called(monkeypatch) -> list[str]:
    """Replace each command by a function that only records its name; return the list of recorded names."""
    names: list[str] = []

    def watched(name, command):
        @functools.wraps(command)
        def record(*words, **flags):
            names.append(name)
            return 0

        return record

    for group in (COMMANDS, *(one for one in COMMANDS.values() if isinstance(one, CommandGroup))):
        for name, command in group.items():
            if not isinstance(command, CommandGroup):
                monkeypatch.setitem(group, name, watched(name, command))
    return names


def test_no_wrong_line_runs_anything(called, monkeypatch, capsys) -> None:
    monkeypatch.setattr("noether.launch.detect.resolve.refuse_several", lambda *facts: None)
    assert len(WRONG) >= 40
    for line, (code, fix) in WRONG.items():
        with pytest.raises(RequestError) as caught:
            entry.dispatch(shlex.split(line))
        assert (caught.value.code, caught.value.fix) == (code, fix), line
        seen = shlex.split(str(caught.value.parts["seen"]))
        assert 0 < len(seen) <= len(shlex.split(line)) + 2, f"{line}: `seen` must not have more words than were typed"
        assert called == [], line
    assert "".join(capsys.readouterr()) == "", "dispatch must print nothing, because main prints the error"
    entry.dispatch(["train", "seed=1"])
    assert called == ["train"]


def test_every_word_is_handed_over_unchanged(monkeypatch, capsys) -> None:
    seen = {}

    def train(*overrides: str, hp: str | None = None, dry_run: bool = False, json: bool = False) -> int:
        """Train."""
        seen.update(overrides=overrides, hp=hp, dry_run=dry_run)
        return 0

    monkeypatch.setitem(COMMANDS, "train", train)
    # If another test has imported torch in this process, main exits by os._exit, which would end pytest with code 0.
    monkeypatch.setattr(entry, "_leave", sys.exit)
    nasty = ("a=1e-3", "b=0,1", "c={d: e}", "f=[1,2]", "g='$HOME `x` \"q\"'", "~h", "+i=None", "j=--k", "-", "", "True")
    with pytest.raises(SystemExit) as left:
        entry.main(["train", *nasty, "--hp", "1,2.yaml", "--dry-run"])
    assert left.value.code == 0
    assert seen == {"overrides": nasty, "hp": "1,2.yaml", "dry_run": True}
    assert capsys.readouterr().out == ""


HELP = {
    "train": ["train --help", "train -h", "train -- --help", "train -- -h", "help train", "--help train",
              "train seed=1 --help", "train --hp x.yaml --dry-run -h", "train seed=1 -- --help"],
    "data prepare": ["data prepare --help", "data prepare -- --help", "help data prepare", "data prepare a b -h"],
    "data": ["data", "data --help", "data -- --help", "help data"],
    "": ["", "--help", "-h", "-- --help", "help"],
}  # fmt: skip


@pytest.mark.parametrize("name", HELP)
def test_help_is_one_text_however_it_is_asked_for(name: str, called, capsys) -> None:
    texts = set()
    for line in HELP[name]:
        assert entry.dispatch(shlex.split(line)) == 0
        said = capsys.readouterr()
        texts.add(said.out)
        assert said.err == "", line
    (text,) = texts
    assert text.startswith(f"NAME\n    noether{f' {name}' * bool(name)} - ")
    assert called == []


@pytest.mark.parametrize("verb", verbs())
def test_help_describes_every_word_and_flag(verb: str) -> None:
    (text,) = bind([*verb.split(), "--help"]).words
    for name, one in inspect.signature(verbs()[verb]).parameters.items():
        shown = f"--{name}={name.upper()}\n" if one.kind is one.KEYWORD_ONLY else f"    {name.upper()}\n"
        lines = text.partition(shown)[2].partition("\n    -")[0].partition("\nFLAGS")[0].split("\n")
        assert [line for line in lines if line.strip() and not line.lstrip().startswith(("Type:", "Def"))], name
    assert "FIRE_METADATA" not in text
    assert "-h, --hp" not in text, "-h must show the help"


def test_help_on_a_terminal_needs_no_pager(environ) -> None:
    """By default, Fire would show the help on stderr through $PAGER."""
    own = {**environ, "PAGER": "false", "TERM": "dumb", "PYTHONPATH": str(REPOSITORY)}
    code, said = converse([sys.executable, "-m", "noether", "report", "--help"], "", own)
    assert (code, "noether report - Write a run's report.html again" in said) == (0, True), said


def test_fires_completion_is_ours(capsys) -> None:
    for line in ("-- --completion", "-- --completion bash", "completion bash", "train -- --completion"):
        assert entry.dispatch(shlex.split(line)) == 0
        assert "complete -F _noether noether" in capsys.readouterr().out


VOCABULARY = (
    "inspect", "--hp", "--dry-run", "--dry_run=true", "--json", "--set", "--set=a", "--mesh", "-m", "-d", "-t", "-v",
    "-f", "-h", "--help", "--", "-", "", "--nodes", "--node_rank", "--nojson", "--no-json", "--trainer.max-epochs",
    "--devices", "--devices=0,1", "--trace", "--separator", "--completion", "--bogus", "-x", "--no", "--=", "---",
    "-1", "--self", "--s", "--t=x", "-hv", "--hel", "=", "a=1", "~b", "+c=2", "my.yaml", "x.stl", "True",
    "--class--", "__class__", "__doc__", "pop", "run", "FIRE_METADATA", "\x1f", "é",
)  # fmt: skip
MANY = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@MANY
@given(words=strategies.lists(strategies.sampled_from((*COMMANDS, *VOCABULARY)), max_size=7))
def test_any_words_are_bound_or_refused(words, called) -> None:
    said = ""
    try:
        bind(words)
    except RequestError as error:
        said = str(error)
    assert ("\0" in said, called) == (False, [])


@MANY
@given(data=strategies.data())
def test_what_is_bound_is_what_was_typed(data) -> None:
    """Every word, flag and setting of a valid line is bound to the right parameter, in any order and form."""
    verb = data.draw(strategies.sampled_from([*verbs()]))
    command = verbs()[verb]
    variadic = [name for name, one in inspect.signature(command).parameters.items() if one.kind is one.VAR_POSITIONAL]
    needed = [f"w{place}" for place in range(len(words_of(command)))]
    words = needed + [f"k{place}=1" for place in range(data.draw(strategies.integers(0, 3)) if variadic else 0)]
    flags, parts, settings_typed = {}, [[word] for word in words], []
    for name, kind in flags_of(command).items():
        if name == "module":  # All words after this flag belong to the module.
            continue
        form = data.draw(strategies.sampled_from(["", f"--{name}", f"--{name.replace('_', '-')}"]))
        if form and kind is bool:
            flags[name] = data.draw(strategies.booleans())
            on, off = [[form], [f"{form}=true"]], [[f"--no{form[2:]}"], [f"{form}=False"]]
            words_of_it = [*on, [form, "True"]] if flags[name] else [*off, [form, "false"]]
            parts.append(data.draw(strategies.sampled_from(words_of_it)))
        elif form:
            flags[name] = data.draw(strategies.sampled_from([f"v-{name}", "True", "-1", "a=1"]))
            parts.append(data.draw(strategies.sampled_from([[form, flags[name]], [f"{form}={flags[name]}"]])))
    for name in ("seed", "trainer.max_epochs") if "overrides" in variadic else ():
        if data.draw(strategies.booleans()):
            settings_typed.append(f"{name}=7")
            parts.append(data.draw(strategies.sampled_from([[f"--{name}", "7"], [f"--{name}=7"]])))
    at, typed = 0, []
    for part in data.draw(strategies.permutations(parts)):
        typed += [words[at]] if len(part) == 1 and part[0] in words else part
        at += len(part) == 1 and part[0] in words
    call = bind([*verb.split(), *typed])
    assert (call.verb, dict(call.flags)) == (verb, flags), typed
    assert [word for word in call.words if word not in settings_typed] == words, typed
    assert sorted(word for word in call.words if word in settings_typed) == sorted(settings_typed), typed


def test_the_linter_reads_only_lines_that_train() -> None:
    assert read_train_line(("train", "--hp", "x.yaml", "a=1", "--seed", "2")) == (("a=1", "seed=2"), "x.yaml")
    for line in ("--reest", "-- --trace", "-- --completion", "--help", "--self=1", "-- --separator"):
        assert read_train_line(("train", *line.split())) is None, line


PROGRAMS = [
    (["bash"], "docker", "docker run --entrypoint bash … IMAGE"),
    (["sh", "-c", "ls /"], "podman", "podman run --entrypoint sh … IMAGE -c 'ls /'"),
    (["bash"], "apptainer", "apptainer exec IMAGE.sif bash"),
    (["trian"], "docker", "--entrypoint PROGRAM"),
]


@pytest.mark.parametrize(("words", "engine", "fix"), PROGRAMS)
def test_programs_of_an_image_are_named_with_its_entrypoint(words, engine, fix) -> None:
    with refusal(fix=fix):
        bind(words, engine)


SIF = {"APPTAINER_CONTAINER": "/images/noether.sif"}


@pytest.mark.parametrize(
    ("fix", "mount", "engine", "expected"),
    [
        ("srun noether train …", "", "apptainer", "srun apptainer exec noether.sif train …"),
        ("srun --overlap noether train …", "", "apptainer", "srun --overlap apptainer exec noether.sif train …"),
        ("noether plan      (or noether train)", "", "docker",
         "docker run … IMAGE plan      (or docker run … IMAGE train)"),
        ("accelerator=cpu", "", "docker", "accelerator=cpu"),
        ("srun noether train …", "", "", "srun noether train …"),
        ("output_path=FOLDER", "/data/runs", "docker",
         'docker run --user "$(id -u):$(id -g)" -v /data/runs:/data/runs …      (runs as you, and mounts the folder)\n'
         "output_path=FOLDER"),
        ("", "/data/runs", "apptainer",
         "apptainer exec --bind /data/runs noether.sif …      (a container sees only what is bound into it)"),
    ],
)  # fmt: skip
def test_commands_of_a_fix_are_the_container_s(fix, mount, engine, expected) -> None:
    assert fix_in_container(fix, mount, engine, SIF) == expected


@pytest.mark.parametrize("mount", ["/", "//", ".", "/etc/ssl", "/usr/lib/../..", "/work"])
@pytest.mark.parametrize("engine", ["docker", "podman", "apptainer"])
def test_neither_the_host_s_root_nor_its_system_is_ever_mounted(mount: str, engine: str, monkeypatch) -> None:
    monkeypatch.chdir("/")
    fix = fix_in_container("output_path=FOLDER", mount, engine, SIF)
    assert "output_path=FOLDER" in fix
    assert ("-v " in fix, "--bind" in fix) == (False, False), fix
    assert ("--user" in fix) == (engine != "apptainer")


@pytest.mark.parametrize(
    ("line", "several"),
    [("--devices=2 a.py", True), ("--devices 0,1 a.py", True), ("accelerator=cpu devices=16 -m a", True),
     ("--devices=1 a.py", False), ("--devices=3, a.py", False), ("a.py --devices 4", False),
     ("--dry-run --devices=2 a.py", False)],
)  # fmt: skip
def test_ranks_are_expected_as_soon_as_words_name_several_devices(line, several) -> None:
    assert entry._names_several(["run", *line.split()]) is several

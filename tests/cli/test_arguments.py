"""Flags, overrides and files in any order become one command."""

import sys

import pytest

from noether.cli.arguments import parse_arguments
from noether.cli.commands import VERBS
from noether.config.schema import RunConfig


def parse(*words: str):
    return parse_arguments(words, VERBS, tuple(RunConfig.model_fields))


CASES = {
    "nothing": (["train"], (), {}),
    "overrides": (["train", "+a=1", "~b", "c.d=2"], ("+a=1", "~b", "c.d=2"), {}),
    "flag-before": (["train", "--hp", "x.yaml", "a=1"], ("a=1",), {"hp": "x.yaml"}),
    "flag-after": (["train", "a=1", "--hp=x.yaml"], ("a=1",), {"hp": "x.yaml"}),
    "leading-file": (["train", "x.yaml", "a=1"], ("a=1",), {"hp": "x.yaml"}),
    "switch-does-not-eat-the-next-word": (["train", "--dry-run", "a=1"], ("a=1",), {"dry_run": True}),
    "switch-with-underscore": (["train", "--dry_run"], (), {"dry_run": True}),
    "switch-off": (["train", "--dry-run=false"], (), {"dry_run": False}),
    "parameters-of-a-case": (["predict", "r", "--set", "a=1", "--set", "b=2"], ("r",), {"set": "a=1,b=2"}),
    "setting-as-flag": (["train", "--accelerator", "cpu"], ("accelerator=cpu",), {}),
    "setting-with-commas": (["train", "--devices", "0,1"], ('devices="0,1"',), {}),
    "plan-for-another-machine": (["plan", "--visible-devices", "0,1"], (), {"visible_devices": "0,1"}),
    "folder": (["evaluate", "runs/x", "--split", "train"], ("runs/x",), {"split": "train"}),
}


@pytest.mark.parametrize(("words", "positional", "flags"), CASES.values(), ids=CASES.keys())
def test_command_lines(words, positional, flags) -> None:
    command = parse(*words)
    assert (command.verb, command.positional, dict(command.flags)) == (words[0], positional, flags)


def test_every_word_is_handed_over_unchanged(monkeypatch, capsys) -> None:
    seen = {}

    def train(*overrides: str, hp: str | None = None, dry_run: bool = False, json: bool = False) -> int:
        seen.update(overrides=overrides, hp=hp, dry_run=dry_run)
        return 0

    from noether.cli import commands, entry

    monkeypatch.setitem(commands.VERBS, "train", train)
    # Where an earlier test has imported torch, main leaves by os._exit: it would end pytest, with 0.
    monkeypatch.setattr(entry, "_leave", sys.exit)
    nasty = ("a=1e-3", "b=0,1", "c={d: e}", "f=[1,2]", "g='$HOME `x` \"q\"'", "~h", "+i=None", "j=--k")
    with pytest.raises(SystemExit) as left:
        entry.main(["train", *nasty, "--hp", "1,2.yaml", "--dry-run"])
    assert left.value.code == 0
    assert seen == {"overrides": nasty, "hp": "1,2.yaml", "dry_run": True}
    assert capsys.readouterr().out == ""

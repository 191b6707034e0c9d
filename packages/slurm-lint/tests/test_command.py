"""Test the command's output and exit code: formats, disabled rules, --fix, and files that cannot be read."""

import json
import os
from pathlib import Path

import pytest

from slurm_lint import shell
from slurm_lint.check import MAX_SIZE, lint_text
from slurm_lint.command import main, run_lint
from slurm_lint.words import UsageError

REPOSITORY = Path(__file__).resolve().parents[2]
WRONG = "#!/bin/bash\n#SBATCH --time=2h\npython t.py\necho 50%, done: yes\n"


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "job.sbatch"
    path.write_text(WRONG)
    return path


def run(*words: str, style: str = "text", fix: bool = False) -> int:
    return run_lint(words, fix=fix, style=style, advice=True)


def test_text_names_line_level_code_and_what_to_write(job: Path, capsys) -> None:
    assert run(str(job)) == 1
    said = capsys.readouterr().out
    assert f"{job}\n  2: error: sbatch refuses --time=2h" in said
    assert "[NTH120 bad-value]" in said
    assert "#SBATCH --time=2:00:00" in said
    assert "1 error, 1 piece of advice" in said


def test_a_hint_in_words_is_told_from_a_fix_that_was_tried(job: Path, capsys) -> None:
    job.write_text("#!/bin/bash\n#SBATCH --time=2h --mem=much\nhostname\n")
    run(str(job))
    said = capsys.readouterr().out
    assert "  fix   #SBATCH --time=2:00:00 --mem=much\n" in said
    assert "  hint  for example #SBATCH --mem=64G\n" in said
    run(str(job), style="json")
    fixes = {(found["fix"] != "", found["hint"] != "") for found in json.loads(capsys.readouterr().out)}
    assert fixes == {(True, False), (False, True)}


def test_json_is_a_list_of_findings(job: Path, capsys) -> None:
    run(str(job), style="json")
    first, second = json.loads(capsys.readouterr().out)
    assert (first["line"], first["level"], first["code"], first["rule"]) == (2, "error", "NTH120", "bad-value")
    assert second["code"] == "NTH401"
    run(str(job), str(job), style="json")
    assert {found["file"] for found in json.loads(capsys.readouterr().out)} == {str(job)}


def test_github_s_annotations_are_escaped(job: Path, capsys) -> None:
    job = job.rename(job.with_name("a,b.sbatch"))
    run(str(job), style="github")
    error, warning = capsys.readouterr().out.splitlines()
    place = str(job).replace(",", "%2C")
    assert error.startswith(f"::error file={place},line=2,title=NTH120 bad-value::sbatch refuses")
    assert "%0Afix: " in error
    assert warning.startswith("::notice ")


def test_sarif_has_a_rule_and_a_place_for_each_result(job: Path, capsys) -> None:
    run(str(job), style="sarif")
    log = json.loads(capsys.readouterr().out)
    (analysis,) = log["runs"]
    known = {rule["id"] for rule in analysis["tool"]["driver"]["rules"]}
    assert log["version"] == "2.1.0"
    assert {result["ruleId"] for result in analysis["results"]} == {"NTH120", "NTH401"} <= known
    place = analysis["results"][0]["locations"][0]["physicalLocation"]
    assert place["region"] == {"startLine": 2}
    assert place["artifactLocation"]["uri"] == job.as_posix()


CPUS, OUTPUT = "#SBATCH -n2 -c8\nsrun python t.py", "#SBATCH -o no/such/%j.out\nhostname"


@pytest.mark.parametrize(
    ("text", "slurm", "rule"),
    [
        (CPUS, None, None), (CPUS, "22.05.8", "srun-cpus"), (CPUS, "23.02", "srun-cpus"), (CPUS, "23.11", None),
        (OUTPUT, None, None), (OUTPUT, "20.11", "output-folder"), (OUTPUT, "23.02", None),
    ],
)  # fmt: skip
def test_what_depends_on_slurm_s_version_is_said_of_that_version(job: Path, capsys, text, slurm, rule) -> None:
    job.write_text(f"#!/bin/bash\n{text}\n")
    assert run_lint([str(job)], style="json", slurm=slurm) == 0
    assert [found["rule"] for found in json.loads(capsys.readouterr().out)] == ([rule] if rule else [])


@pytest.mark.parametrize(
    ("comment", "left"),
    [
        ("# slurm-lint: disable=NTH120", ["exit-code-lost"]),
        ("# slurm-lint: disable=bad-value, NTH401", ["exit-code-lost"]),
        ("# slurm-lint: disable=all", ["exit-code-lost"]),
        ("# slurm-lint: disable=NTH401", ["bad-value", "exit-code-lost"]),
        ("\n# slurm-lint: disable=NTH401, bad-value", []),
    ],
)
def test_a_rule_is_silenced_on_its_line_or_in_the_file(comment: str, left: list[str]) -> None:
    text = WRONG.replace("--time=2h", f"--time=2h {comment}")
    assert [finding.rule for finding in lint_text(text, Path("/nowhere/job.sbatch"))[0]] == left


def test_a_comment_behind_a_continued_command_silences_its_findings() -> None:
    text = "#!/bin/bash\npython t.py \\\n  --lr 1  # slurm-lint: disable=NTH401\necho done\n"
    assert not lint_text(text, Path("/nowhere/job.sbatch"))[0]


def test_what_cannot_be_read_hides_no_other_s_findings(job: Path, tmp_path: Path, capsys) -> None:
    (tmp_path / "link.sbatch").symlink_to("nowhere")
    (tmp_path / "memory.sbatch").symlink_to("/dev/mem" if os.geteuid() else "/proc/self/mem")
    with (tmp_path / "large.sbatch").open("wb") as file:
        file.truncate(MAX_SIZE + 1)
    assert run(str(tmp_path / "missing.sbatch"), str(tmp_path)) == 2
    said = capsys.readouterr().out
    assert said.count("could not be read") == 4
    assert "[NTH120 bad-value]" in said


@pytest.mark.parametrize(
    ("text", "read"), [("<<A\n" * 400_000, False), ("echo \0\1\n", True), ("a=b\n" * 40_000, True)]
)
def test_a_text_that_holds_the_parser_hides_no_other_s_findings(job: Path, monkeypatch, capsys, text, read) -> None:
    monkeypatch.setattr(shell, "PARSE_LIMIT_S", 3)
    other = job.with_name("other.sbatch")
    other.write_text("#!/bin/bash\n" + text)
    assert run(str(other), str(job)) == (1 if read else 2)
    assert ("could not be read" not in (said := capsys.readouterr().out)) == read
    assert "[NTH120 bad-value]" in said


def test_a_fault_of_the_linter_is_a_finding_of_that_file(job: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    from slurm_lint import check

    other = tmp_path / "other.sbatch"
    other.write_text("#!/bin/bash\nhostname\n")
    real = check.lint_text
    monkeypatch.setattr(check, "lint_text", lambda text, path, own: [][0] if path == other else real(text, path, own))
    assert run(str(other), str(job)) == 2
    said = capsys.readouterr().out
    assert "a fault in slurm-lint: IndexError" in said
    assert "[NTH120 bad-value]" in said


def test_fix_writes_beside_the_original_and_says_what_is_left(job: Path, capsys) -> None:
    job.write_text("#SBATCH --time=2h\nhostname\n")
    assert run(str(job), fix=True) == 1
    fixed = job.with_name("job.fixed.sbatch")
    assert fixed.read_text() == "#!/bin/bash\n#SBATCH --time=2h\nhostname\n"
    assert job.read_text() == "#SBATCH --time=2h\nhostname\n"
    said = capsys.readouterr().out
    assert "1 of 2 fixed" in said
    assert "left to you, line 2" in said
    fixed.write_text("#SBATCH -n1\nhostname\n")
    with pytest.raises(UsageError, match="is itself a fixed script"):
        run(str(fixed), fix=True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("partition = ['a']", "'partition' is not a line of a site file\n  fix  partitions"),
        ("partitions = 'a'", "partitions is 'a', expected a list of words"),
        ("slurm = 'new'", "'new' is not a version of Slurm"),
        ("slurm = ", "cannot read the site file"),
        (None, "no site file"),
    ],
)
def test_a_site_file_that_is_wrong_is_refused_with_its_line(job: Path, tmp_path: Path, text, words, capsys) -> None:
    site = tmp_path / "site.toml"
    if text is not None:
        site.write_text(text)
    assert main([str(job), "--site", str(site)]) == 2
    assert words in capsys.readouterr().err


def test_the_site_turns_rules_off_and_says_the_version(job: Path, tmp_path: Path, monkeypatch, capsys) -> None:
    site = tmp_path / "site.toml"
    site.write_text('slurm = "22.05.3"\ndisable = ["bad-value"]\n')
    monkeypatch.setenv("SLURM_LINT_SITE", str(site))
    job.write_text(f"#!/bin/bash\n#SBATCH --time=2h\n{CPUS}\n")
    assert main([str(job), "--format", "json"]) == 0
    assert [found["rule"] for found in json.loads(capsys.readouterr().out)] == ["srun-cpus"]
    assert main([str(job), "--format", "json", "--slurm", "23.11"]) == 0
    assert json.loads(capsys.readouterr().out) == []

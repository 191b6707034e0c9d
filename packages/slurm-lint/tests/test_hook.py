"""Test the README's examples: its pre-commit hook, its site file and its commands."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from slurm_lint.command import main
from slurm_lint.programs import read_site

PACKAGE = Path(__file__).resolve().parents[1]
README = (PACKAGE / "README.md").read_text()
BLOCKS = dict(re.findall(r"```(yaml|toml)\n(.*?)```", README, re.DOTALL))


@pytest.mark.slow
def test_the_hook_of_the_readme_refuses_a_wrong_script_and_takes_a_right_one(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        environ = {**os.environ, "PRE_COMMIT_HOME": str(tmp_path / "cache"), "GIT_CONFIG_GLOBAL": os.devnull}
        return subprocess.run(words, cwd=work, env=environ, capture_output=True, text=True, timeout=300)

    work = tmp_path / "work"
    work.mkdir()
    hook = BLOCKS["yaml"].replace("file:///path/to/packages/slurm-lint", PACKAGE.as_uri())
    (work / ".pre-commit-config.yaml").write_text(hook)
    pre_commit = (sys.executable, "-m", "pre_commit")
    run("git", "init", "-q")
    if (made := run(*pre_commit, "install-hooks")).returncode:
        if os.environ.get("CI") != "true":
            pytest.skip(f"pre-commit cannot install the hook, which needs a package index: {made.stdout[-300:]}")
        pytest.fail(made.stdout + made.stderr)
    script = work / "job.sbatch"
    for option, code in (("--time=2h", 1), ("--time=2:00:00", 0)):
        script.write_text(f"#!/bin/bash\n#SBATCH {option}\nhostname\n")
        run("git", "add", ".")
        done = run(*pre_commit, "run", "--all-files")
        assert done.returncode == code, done.stdout + done.stderr
        assert ("sbatch refuses --time=2h" in done.stdout) == bool(code)


def test_the_site_file_of_the_readme_is_read(tmp_path: Path) -> None:
    (tmp_path / "site.toml").write_text(BLOCKS["toml"])
    site = read_site(str(tmp_path / "site.toml"))
    assert (site.slurm, site.partitions) == (23.02, ("cpu", "gpu"))


def test_each_command_of_the_readme_is_one(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs").mkdir()
    for name in ("job.sbatch", "jobs/a.slurm", "README.md"):
        (tmp_path / name).write_text("#!/bin/bash\n#SBATCH -n1\nhostname\n")
    commands = [line.partition("  #")[0].split()[1:] for line in README.split("\n") if line.startswith("slurm-lint ")]
    assert len(commands) == 6
    assert [main(words) for words in commands] == [0] * 6
    assert "NTH102" in capsys.readouterr().out

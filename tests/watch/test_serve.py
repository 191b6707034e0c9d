"""The command: what it prints, how it ends, and what it refuses."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import run_to_end
from test_readme import commands

from watch.watching import serve


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("cars", "lorries"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.yaml").write_text("seed: 1\n")
    return tmp_path


def test_ctrl_c_ends_it_cleanly_and_the_address_is_told(runs: Path, environ) -> None:
    with serve(environ, "runs/cars", cwd=runs) as page:
        assert f"ssh -N -L {page.port}:127.0.0.1:{page.port}" in page.said
        assert len(page.path.strip("/")) >= 32
        assert page.ask("")[0] == 200
        assert listening(page.port) == {"0100007F"}, "127.0.0.1 alone"
        code, said = page.end()
        assert code == 0
        assert "Traceback" not in said


def listening(port: int) -> set[str]:
    """The addresses at which this machine listens to a port, as /proc/net/tcp writes them."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}


def documented() -> list[str]:
    return commands(REPOSITORY / "docs" / "watch.md", "noether")


@pytest.mark.parametrize("line", documented())
def test_the_documented_commands_serve(line: str, runs: Path, environ) -> None:
    words = re.sub(r" --port \d+", "", line).split()[2:]  # Another test may have that port.
    with serve(environ, *words, cwd=runs) as page:
        listed = [run["name"] for run in page.json("api/runs")["runs"]]
        assert set(listed) == ({Path(word).name for word in words} or {"cars", "lorries"})
        assert page.end()[0] == 0


@pytest.mark.parametrize(
    ("arguments", "fix"),
    [
        (["runs/crs"], "runs/cars"),
        (["--port", "x"], "--port 8642"),
        (["--port", "70000"], "--port 8642"),
        (["--port", "{taken}"], "any free port"),
    ],
    ids=["no-such-run", "port-is-a-word", "port-too-high", "port-taken"],
)
def test_a_wrong_request_is_told_how_to_be_right(arguments: list[str], fix: str, runs: Path, noether) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        words = [word.format(taken=taken.getsockname()[1]) for word in arguments]
        told = noether("watch", *words, cwd=runs, PYTHONPATH=str(REPOSITORY))
    assert told.code == 2, told.out + told.err
    assert fix in told.err


def test_where_there_are_no_runs_the_first_command_is_named(tmp_path: Path, noether) -> None:
    told = noether("watch", cwd=tmp_path, PYTHONPATH=str(REPOSITORY))
    assert told.code == 2
    assert "noether train" in told.err


@pytest.mark.parametrize("missing", ["starlette", "uvicorn"])
def test_without_the_extra_its_line_is_named(missing: str, runs: Path, environ) -> None:
    code = f"import sys; sys.modules[{missing!r}] = None\nfrom noether.cli import main; main(['watch', 'runs'])"
    done = run_to_end([sys.executable, "-c", code], {**environ, "PYTHONPATH": str(REPOSITORY)}, cwd=runs)
    assert done.returncode == 2, done.stderr
    assert "pip install starlette uvicorn " in done.stderr
    assert missing in done.stderr


def test_it_imports_neither_torch_nor_what_draws(runs: Path, environ) -> None:
    code = (
        "import sys\nfrom noether.watch.watched_run import find_runs\nfrom noether.watch.app import make_app\n"
        "runs = find_runs(['runs'])\nmake_app(runs, 't')\n[run.detail() for run in runs.all()]\n"
        "sys.exit(', '.join({'torch', 'matplotlib', 'scipy'} & set(sys.modules)) or 0)"
    )
    done = run_to_end([sys.executable, "-c", code], {**environ, "PYTHONPATH": str(REPOSITORY)}, cwd=runs)
    assert done.returncode == 0, done.stderr


def test_the_files_of_the_page_are_shipped() -> None:
    """hatchling puts every file of the package into the wheel that git does not ignore."""
    page = REPOSITORY / "noether" / "watch"
    files = [path for folder in ("static", "templates") for path in (page / folder).rglob("*.*")]
    assert page / "static" / "uplot" / "LICENSE" in (page / "static" / "uplot").iterdir()
    ignored = subprocess.run(
        ["git", "check-ignore", *map(str, files)], cwd=REPOSITORY, capture_output=True, text=True, timeout=60
    )
    assert len(files) > 12
    assert ignored.stdout == ""

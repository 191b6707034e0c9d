"""The watch command: its end, its refusals, and the server's answers, which show nothing outside a run."""

import json
import os
import re
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from conftest import REPOSITORY
from PIL import Image
from processes import lay, run_to_end
from test_readme import commands

from noether.runs.folder import RunFolder
from noether.runs.records import row_line, write_record
from noether.watch.connections import REQUEST_S
from watch.watching import LIMIT_S, serve

SECRET = "not-for-the-page"
MARKUP = "<img src=x onerror=alert(1)>"
RUN = "cars<b>"


def write_run(path: Path, seed: int = 1) -> RunFolder:
    """Write a run of two ranks whose every text contains markup."""
    folder = RunFolder(path)
    folder.logs.mkdir(parents=True)
    folder.evaluation.mkdir()
    folder.config.write_text(f"seed: {seed}\nrun_id: {path.name!r}\nmodel: {{kind: {MARKUP!r}, dim: 32}}\n")
    plan = {"world_size": 2, "nodes": [MARKUP], "length": {"total_updates": 100}, "warnings": [MARKUP]}
    write_record(folder.plan, {**plan, "workers": [{"rank": 0, "node_rank": 0, "device": MARKUP}]})
    rows = [{"kind": "training", "update": n, "time": 1e9 + n, "loss": seed / n, MARKUP: 1.0} for n in range(1, 51)]
    metrics = {"loss": 0.5 * seed, f"{MARKUP}/mae": 2.0}
    whose = {"split": "validation", "weights": "ema", "selected": True}
    rows.append({"kind": "evaluation", "update": 50, **whose, "metrics": metrics})
    folder.metrics.write_text("".join(map(row_line, rows)))
    write_record(folder.result, {"metrics": {"loss": 0.25 * seed, MARKUP: 3.0}, "split": "test"})
    for rank in range(2):
        (folder.logs / f"rank-{rank}.log").write_text(f"rank {rank} \x1b[31m{MARKUP}\x1b[0m </pre><script>\n")
    Image.new("RGB", (40, 20), "teal").save(folder.evaluation / f"{MARKUP.replace('/', '')}.png")
    return folder


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, environ: dict[str, str]) -> Iterator[SimpleNamespace]:
    """Yield a folder of runs, a secret file outside it, links to the secret in a run, and the page of the folder."""
    root = tmp_path_factory.mktemp("watched")
    (root / "outside").mkdir()
    secret = root / "outside" / "secret.png"
    secret.write_text(f"seed: {SECRET}\n")
    honest, other = write_run(root / "runs" / RUN), write_run(root / "runs" / "other", seed=2)
    linked = write_run(root / "runs" / "linked")
    for path in (linked.config, linked.metrics, linked.logs / "rank-0.log", linked.plan):
        path.unlink()
        path.symlink_to(secret)
    linked.job.write_text("{}")
    (linked.evaluation / "leak.png").symlink_to(secret)
    (linked.evaluation / "folder").symlink_to(root / "outside")
    os.mkfifo(linked.logs / "rank-2.log")
    (linked.logs / "rank-1.log").unlink()
    (linked.logs / "rank-1.log").symlink_to(secret)
    with serve(environ, str(root / "runs")) as page:
        listed = {run["name"]: run["key"] for run in page.json("api/runs")["runs"]}
        yield SimpleNamespace(page=page, root=root, honest=honest, other=other, linked=linked, keys=listed)
        code, said = page.end()
        assert (code, "Traceback" in said) == (0, False), said


@pytest.mark.parametrize(
    ("path", "method", "host", "status"),
    [("", "GET", None, 200), ("", "HEAD", None, 200), ("", "GET", "localhost:9999", 200),
     ("", "GET", "[::1]:8642", 200), ("", "POST", None, 405),
     ("api/runs", "OPTIONS", None, 405), ("static/page.js", "POST", None, 405),
     ("", "GET", "evil.example:8642", 403), ("", "GET", "127.0.0.1.evil.example", 403),
     ("", "GET", "localhost:80:80", 403), ("", "GET", "", 400)],
)  # fmt: skip
def test_who_is_answered(place, path: str, method: str, host: str | None, status: int) -> None:
    assert place.page.ask(path, method, host)[0] == status


@pytest.mark.parametrize("rest", ["", "api/runs", "static/page.js"])
@pytest.mark.parametrize("spoil", ["none", "other", "prefix", "longer", "case", "query", "not-ascii"])
def test_without_the_token_nothing_is_answered(place, spoil: str, rest: str) -> None:
    token = place.page.path.strip("/")
    given = {"none": "", "other": "A" * len(token) + "/", "prefix": token[:-1] + "/", "longer": token + "A/",
             "case": token.swapcase() + "/", "query": f"?token={token}", "not-ascii": "%C3%A9/"}[spoil]  # fmt: skip
    status, headers, body = place.page.ask(f"/{given}{rest}", raw=True)
    assert status == 403
    assert "content-security-policy" in headers
    assert token.encode() not in body


@pytest.mark.parametrize("path", ["", "api/runs", "static/page.js", "api/run/none", "nowhere", "colours.css"])
def test_every_answer_forbids_what_a_page_does_not_need(place, path: str) -> None:
    _, headers, _ = place.page.ask(path)
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert "access-control-allow-origin" not in headers


def test_the_page_loads_nothing_from_elsewhere(place) -> None:
    for path in ("", "static/page.css", "static/page.js", "static/charts.js"):
        body = place.page.ask(path)[2].decode()
        assert "//cdn" not in body
        assert 'src="http' not in body
        assert "innerHTML" not in body
    assert "MIT" in place.page.ask("static/uplot/LICENSE")[2].decode()


@pytest.mark.parametrize(
    "path",
    ["static/../app.py", "static/..%2fapp.py", "static//etc/passwd", "api/run/..%2f..%2foutside", "api/run/%2e%2e",
     "api/run/{key}/picture/../../../outside/secret.png", "api/run/{key}/picture/..%2f..%2f..%2foutside%2fsecret.png",
     "api/run/{key}/picture/evaluation%2fleak.png", "api/run/{key}/log/..%2f..%2fconfig", "api/run/{key}/log/99",
     "api/run/{linked}/log/0", "api/run/{linked}/log/1", "api/run/{linked}/log/2"],
)  # fmt: skip
def test_no_path_leads_out_of_a_run(place, path: str) -> None:
    filled = path.format(key=place.keys[RUN], linked=place.keys["linked"])
    status, _, body = place.page.ask(filled)
    assert status == 404
    assert SECRET.encode() not in body
    assert b"root:" not in body


def test_links_out_of_a_run_are_not_followed(place) -> None:
    key = place.keys["linked"]
    detail = place.page.json(f"api/run/{key}")
    pieces = [detail, place.page.json(f"api/curves?runs={key}"), place.page.json(f"api/compare?runs={key}")]
    assert SECRET not in json.dumps(pieces)
    assert detail["settings"] == {}
    assert [picture["title"] for picture in detail["pictures"]] == [f"{MARKUP}.png"], "no link may be listed"


def test_texts_of_a_run_come_as_json_alone(place) -> None:
    key = place.keys[RUN]
    page = place.page.ask("")[2].decode()
    assert RUN not in page
    assert MARKUP not in page
    for path in (f"api/run/{key}", f"api/run/{key}/log/0", f"api/curves?runs={key}", f"api/compare?runs={key}"):
        status, headers, body = place.page.ask(path)
        assert status == 200
        assert headers["content-type"] == "application/json"
        assert MARKUP in body.decode()


def test_a_log_comes_without_escapes_and_goes_on_where_it_was_read(place) -> None:
    key = place.keys[RUN]
    first = place.page.json(f"api/run/{key}/log/1")
    assert first["text"] == f"rank 1 {MARKUP} </pre><script>\n"
    with (place.honest.logs / "rank-1.log").open("ab") as log:
        log.write("é".encode()[:1])
        log.flush()
        assert place.page.json(f"api/run/{key}/log/1?from={first['next']}")["text"] == ""
        log.write("é".encode()[1:] + b" more\n")
    assert place.page.json(f"api/run/{key}/log/1?from={first['next']}")["text"] == "é more\n"
    (place.honest.logs / "rank-1.log").write_text("anew\n")
    assert place.page.json(f"api/run/{key}/log/1?from={first['next']}")["text"] == "anew\n"


def test_a_long_log_begins_near_its_end_with_a_whole_line(place) -> None:
    (place.other.logs / "rank-0.log").write_text("".join(f"line {n}\n" for n in range(50_000)))
    part = place.page.json(f"api/run/{place.keys['other']}/log/0")
    assert part["text"].endswith("line 49999\n")
    assert part["text"].startswith("line ")
    assert len(part["text"]) <= 2**16


def test_runs_compared(place) -> None:
    keys = [place.keys[RUN], place.keys["other"]]
    answer = place.page.json(f"api/compare?runs={','.join(keys)}")
    assert [run["name"] for run in answer["runs"]] == [RUN, "other"]
    assert answer["settings"] == {"seed": ["1", "2"]}
    assert answer["final"]["loss"] == [0.25, 0.5]
    assert answer["latest"]["of"][0] == f"{RUN}: validation split, EMA weights, update 50"
    table = {row["key"]: (row["split"], row["metrics"]["loss"]) for row in place.page.json("api/table")["runs"]}
    assert [table[key] for key in keys] == [("test", 0.25), ("test", 0.5)]
    curves = place.page.json(f"api/curves?runs={','.join(keys)}&buckets=10&low=10&high=20")["runs"]
    assert [run["key"] for run in curves] == keys
    assert {one["weights"] for one in curves[0]["curves"]} == {"", "EMA weights"}
    assert next(one["x"] for one in curves[0]["curves"] if one["metric"] == "loss") == list(range(9, 22))
    same = f"api/curves?runs={keys[0]}&have={curves[0]['version']}"
    assert place.page.json(same)["runs"] == [{"key": keys[0], "version": curves[0]["version"]}]


def test_a_picture_is_an_image(place) -> None:
    key = place.keys[RUN]
    picture = place.page.json(f"api/run/{key}")["pictures"][0]
    status, headers, body = place.page.ask(f"api/run/{key}/picture/{picture['id']}")
    assert (status, headers["content-type"]) == (200, "image/png")
    assert body.startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("method", "target"),
    [("OPTIONS", "*"), ("CONNECT", "x"), ("GET", "*"), ("GET", "//"), ("GET", "?"), ("BREW", "/"), ("GET", "x" * 5000)],
)
def test_odd_requests_of_any_local_user_are_refused(place, method: str, target: str) -> None:
    """The fixture `place` also checks that the server has printed no traceback."""
    assert 400 <= place.page.ask(target, method, raw=True)[0] < 500


@pytest.mark.parametrize(
    "path",
    [f"run/{{key}}/log/{'9' * 5000}", f"run/{{key}}/log/0?from={'9' * 5000}", "run/{key}/log/x"]
    + [f"curves?runs={{key}}&{query}" for query in ("buckets=x&low=nan&high=-", "buckets=1e99", "buckets=-5&runs=,,x")],
)
def test_strange_numbers_are_answered(place, path: str) -> None:
    assert place.page.ask(f"api/{path.format(key=place.keys[RUN])}")[0] in (200, 404)


def test_watching_changes_nothing(place) -> None:
    def snapshot() -> dict[str, tuple[int, int]]:
        found = [path for path in place.root.rglob("*") if not stat.S_ISFIFO(path.lstat().st_mode)]
        return {str(path): (path.lstat().st_mtime_ns, path.lstat().st_size) for path in found}

    before = snapshot()
    for key in place.keys.values():
        for path in (f"api/run/{key}", f"api/run/{key}/log/0", f"api/curves?runs={key}", "api/runs"):
            place.page.ask(path)
    assert snapshot() == before


def test_a_new_run_joins_and_a_removed_one_leaves(place) -> None:
    new = write_run(place.root / "runs" / "late")
    assert "late" in [run["name"] for run in place.page.json("api/runs")["runs"]]
    new.path.rename(place.root / "outside" / "late")
    assert "late" not in [run["name"] for run in place.page.json("api/runs")["runs"]]


def test_a_million_rows_are_answered_while_they_are_read(place) -> None:
    """Each request reads further rows for a while and reports the progress; once all rows are read, it is fast."""
    folder = write_run(place.root / "runs" / "long")
    line = row_line({"kind": "training", "update": 7, "loss": 0.5})
    folder.metrics.write_text(line * 100_000)
    key = next(run["key"] for run in place.page.json("api/runs")["runs"] if run["name"] == "long")
    reading, answers = 0.0, 0
    until = time.monotonic() + 120
    while reading < 1 and time.monotonic() < until:
        before, reading = reading, place.page.json(f"api/curves?runs={key}")["runs"][0].get("reading", 1)
        assert reading >= before
        answers += 1
    assert reading == 1
    assert answers > 1


def test_damaged_arrays_and_settings_do_not_break_the_page(place) -> None:
    folder = write_run(place.root / "runs" / "damaged")
    (folder.evaluation / "test.npz").write_bytes(b"PK\x03\x04 not an archive")
    np.savez(folder.evaluation / "validation.npz", meta=json.dumps({"cases": [1], "fields": {"p": 3}}))
    folder.config.write_text("a: &a [*a, *a]\nb: &b {c: *b}\n" + "".join(f"k{n}: {n}\n" for n in range(9000)))
    folder.plan.write_text('{"world_size": "many", "workers": [3], "nodes": {}, "length": []}')
    folder.attempts.write_text("[]\n")
    key = next(run["key"] for run in place.page.json("api/runs")["runs"] if run["name"] == "damaged")
    detail = place.page.json(f"api/run/{key}")
    assert len(detail["settings"]) <= 5000
    assert detail["update"] == 50


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    lay(tmp_path, {f"runs/{name}/config.yaml": "seed: 1\n" for name in ("cars", "lorries")})
    return tmp_path


def test_ctrl_c_ends_it_cleanly_and_the_address_is_told(runs: Path, environ) -> None:
    with serve(environ, "runs/cars", cwd=runs) as page:
        assert f"ssh -N -L {page.port}:127.0.0.1:{page.port}" in page.said
        assert len(page.path.strip("/")) >= 32
        assert page.ask("")[0] == 200
        assert listening(page.port) == {"0100007F"}, "the server must listen only on 127.0.0.1"
        code, said = page.end()
        assert code == 0
        assert "Traceback" not in said


def listening(port: int) -> set[str]:
    """Return the addresses, as in /proc/net/tcp, at which this machine listens on a port."""
    tables = [Path("/proc/net/tcp"), Path("/proc/net/tcp6")]
    rows = [line.split() for table in tables if table.exists() for line in table.read_text().splitlines()[1:]]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[1].endswith(f":{port:04X}")}


@pytest.mark.parametrize("line", commands(REPOSITORY / "docs" / "watch.md", "noether"))
def test_the_documented_commands_serve(line: str, runs: Path, environ) -> None:
    words = re.sub(r" --port \d+", "", line).split()[2:]  # Another test may use that port.
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
    told = noether("watch", cwd=tmp_path, PYTHONPATH=str(REPOSITORY), code=2)
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
    """hatchling puts those files of the package into the wheel that git does not ignore."""
    page = REPOSITORY / "noether" / "watch"
    files = [path for folder in ("static", "templates") for path in (page / folder).rglob("*.*")]
    assert page / "static" / "uplot" / "LICENSE" in (page / "static" / "uplot").iterdir()
    words = ["git", "check-ignore", *map(str, files)]
    assert len(files) > 12
    assert subprocess.run(words, cwd=REPOSITORY, capture_output=True, text=True, timeout=60).stdout == ""


HALF_SENT = {
    "nothing": b"",
    "half-a-header": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ",
    "half-a-body": b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 9\r\n\r\nx",
}


@pytest.mark.slow
def test_a_request_that_is_never_whole_is_closed_and_keeps_nobody_waiting(place) -> None:
    """A connection that sends a byte every second is closed, too. With 200 connections open, requests are answered."""
    with ExitStack() as stack:
        opened = [
            stack.enter_context(socket.create_connection(("127.0.0.1", place.page.port), timeout=LIMIT_S))
            for _ in range(200)
        ]
        for number, one in enumerate(opened):
            with suppress(OSError):  # The server may have closed an old connection.
                one.sendall(list(HALF_SENT.values())[number % 3])
        assert place.page.ask("api/runs")[0] == 200
        left, until = opened[-6:], time.monotonic() + 2 * REQUEST_S
        while left and time.monotonic() < until:
            time.sleep(0.5)
            left = [one for one in left if not is_closed(one)]
        assert not left
    assert place.page.ask("api/runs")[0] == 200


def is_closed(connection: socket.socket) -> bool:
    """Send one more byte; return whether the server has closed the connection."""
    try:
        connection.sendall(b"x")
        connection.setblocking(False)
        while connection.recv(2**16):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True

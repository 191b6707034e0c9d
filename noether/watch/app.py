"""The addresses of the page, and the answer to a request for each. Nothing in this module writes to a run."""

import csv
import hmac
import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.templating import Jinja2Templates
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from noether.common.numbers import strict_json
from noether.runs.metrics import Metrics, weights_name
from noether.runs.records import finite_values
from noether.runs.report.palette import BANDS, COLOURS
from noether.watch.inside import differing, side_by_side
from noether.watch.watched_run import WatchedRun, WatchedRuns, shown_metric

METHODS = ("GET", "HEAD")
LOOPBACK_HEADER = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE | re.ASCII)
"""Matches a Host header with any port, because the browser's end of a tunnel may have another port."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
        "require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
"""The headers of every answer. The browser loads nothing from other sites, and runs only this page's script files. It
refuses innerHTML (trusted types), so that text cannot become markup."""


class Guard:
    """Refuses every request that lacks the token or is not for reading, and adds HEADERS to every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse one request, or pass it to the application with the token as its `root_path`."""
        if scope["type"] != "http":
            return  # Web sockets are not supported; uvicorn answers 403.

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                more = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", ()), *more]}
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, send_guarded)
            return
        await self._app({**scope, "root_path": f"/{self._token}"}, receive, send_guarded)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        hosts = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        if len(hosts) != 1 or not LOOPBACK_HEADER.fullmatch(hosts[0]):
            return PlainTextResponse("This page is only for this machine.\n", 403)
        # The target of a request may not be a path: in OPTIONS it can be *, and in CONNECT it is a host.
        given = scope["path"].partition("/")[2].partition("/")[0].encode(errors="replace")
        if not hmac.compare_digest(given, self._token.encode()):
            return PlainTextResponse("Open the full address that noether watch printed.\n", 403)
        if scope["method"] not in METHODS:
            return PlainTextResponse("This page only reads.\n", 405, {"Allow": ", ".join(METHODS)})
        return None


HERE = Path(__file__).parent
MOST_COMPARED = 12
MOST_IN_TABLE = 300
MOST_BUCKETS = 2000
MORE_COLOURS = {
    "fifth": ("#a02c5d", "#ef87b4"),
    "sixth": ("#8a6a00", "#d9b84a"),
    "seventh": ("#2452c4", "#8aa9ff"),
    "eighth": ("#4d5a66", "#b7c1cb"),
    "good": ("#23703a", "#6fca8b"),
    "bad": ("#b3261e", "#ff8a80"),
}
"""{name: (light theme's colour, dark theme's)}: colours for more runs than in a report, and for the states of runs."""


def make_app(runs: WatchedRuns, token: str) -> ASGIApp:
    """Return the application, which serves the page, its data as JSON, pictures, and the files in `static/`."""
    templates = Jinja2Templates(directory=HERE / "templates")

    def page(request: Request) -> Response:
        several = bool(runs.folders) or len(runs.named) > 1
        shown = {"several": several, "named": "some" if runs.folders else "all", "bands": list(BANDS)}
        return templates.TemplateResponse(request, "page.html", shown)

    def colours(request: Request) -> Response:
        themes = [{name: pair[k] for name, pair in (COLOURS | MORE_COLOURS).items()} for k in range(2)]
        return templates.TemplateResponse(request, "colours.css", {"themes": themes}, media_type="text/css")

    def listing(request: Request) -> Response:
        return _json({"runs": [run.line() for run in runs.all()]})

    def detail(request: Request) -> Response:
        return _json(_one(runs, request).detail(brief="brief" in request.query_params))

    def curves(request: Request) -> Response:
        asked = request.query_params
        buckets = int(min(max(_number(asked.get("buckets"), 300), 10), MOST_BUCKETS))
        low, high = _number(asked.get("low"), float("-inf")), _number(asked.get("high"), float("inf"))
        have = dict(zip(_keys(request), asked.get("have", "").split(","), strict=False))
        found = runs.of(_keys(request))
        return _json({"runs": [run.curves(have.get(run.key, ""), buckets, low, high) for run in found]})

    routes = [
        Route("/", page),
        Route("/colours.css", colours),
        Route("/api/runs", listing),
        Route("/api/curves", curves),
        *_of_several(runs),
        Route("/api/run/{key}", detail),
        *_files_of_runs(runs),
        Mount("/static", StaticFiles(directory=HERE / "static")),
    ]
    return Guard(GZipMiddleware(Starlette(routes=routes)), token)


def _of_several(runs: WatchedRuns) -> list[Route]:
    """Return the routes to data that compare several runs."""

    def comparison(request: Request) -> Response:
        found = runs.of(_keys(request))
        final, latest = side_by_side([run.final_metrics() for run in found]), _latest(found)
        return _json(
            {
                "runs": [{"key": run.key, "name": run.name} for run in found],
                "settings": differing([run.settings() for run in found]),
                "final": final,
                "latest": latest,
                "described": _described(found, (*final, *latest["values"])),
            }
        )

    def table(request: Request) -> Response:
        found = runs.all()[:MOST_IN_TABLE]
        rows = [run.table_row() for run in found]
        differ = differing([row["settings"] for row in rows])
        for place, row in enumerate(rows):
            row["settings"] = {name: values[place] for name, values in differ.items()}
        return _json({"runs": rows, "described": _described(found)})

    def csv_of_curves(request: Request) -> Response:
        text = io.StringIO()
        write = csv.writer(text).writerow
        write(("run", "split", "weights", "metric", "unit", "update", "value"))
        for run in runs.of(_keys(request)):
            described = run.described
            for split, weights, name, update, value in run.table():
                write((run.name, split, weights, name, described[name].unit, int(update), repr(value)))
        return Response(text.getvalue().encode(errors="replace"), media_type="text/csv; charset=utf-8")

    return [Route("/api/compare", comparison), Route("/api/table", table), Route("/api/curves.csv", csv_of_curves)]


def _files_of_runs(runs: WatchedRuns) -> list[Route]:
    """Return the routes to the logs and pictures in the folders of runs."""

    def log(request: Request) -> Response:
        start = request.query_params.get("from", "")
        try:
            part = _one(runs, request).log(_count(request.path_params["rank"]), _count(start))
        except OSError:
            raise HTTPException(404, "This rank has no log.") from None
        return _json(part)

    def picture(request: Request) -> Response:
        found = _one(runs, request).pictures.content(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "There is no such picture, or it cannot be drawn.")
        return Response(found[0], media_type=found[1])

    return [Route("/api/run/{key}/log/{rank}", log), Route("/api/run/{key}/picture/{name}", picture)]


def _one(runs: WatchedRuns, request: Request) -> WatchedRun:
    found = runs.of([request.path_params["key"]])
    if not found:
        raise HTTPException(404, "There is no such run.")
    return found[0]


def _keys(request: Request) -> list[str]:
    return [key for key in request.query_params.get("runs", "").split(",") if key][:MOST_COMPARED]


def _count(text: str) -> int | None:
    """Return the text as a whole number; None if it is not one, or so long that Python might refuse to read it."""
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 19 else None


def _number(text: str | None, otherwise: float) -> float:
    try:
        value = float(text) if text else otherwise
    except ValueError:
        return otherwise
    return otherwise if value != value else value


def _latest(runs: list[WatchedRun]) -> dict[str, Any]:
    evaluations = [run.last_evaluation() for run in runs]
    told = [
        f"{one.split} split, {weights_name(one.weights)}, update {one.update:,}" if one else "" for one in evaluations
    ]
    alike = len(set(told)) == 1
    of = told[:1] if alike else [f"{run.name}: {one}" for run, one in zip(runs, told, strict=True) if one]
    return {"of": of, "values": side_by_side([finite_values(one.metrics) if one else {} for one in evaluations])}


def _described(runs: list[WatchedRun], names: Iterable[str] = ()) -> dict[str, Any]:
    """Describe the metrics of several runs, and the metrics in `names`, even those that no run describes."""
    described = Metrics({name: metric for run in runs for name, metric in run.described.items()})
    return {name: shown_metric(described[name]) for name in dict.fromkeys((*described, *names))}


def _json(content: Any) -> Response:
    return Response(strict_json(content).encode(errors="replace"), media_type="application/json")

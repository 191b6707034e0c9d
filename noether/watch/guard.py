"""Who is answered: a request to this machine's loopback, under the page's token, that only reads.

The token keeps out other users of this machine and pages of other sites; the check of the Host header keeps out a site
whose name was pointed at 127.0.0.1 (DNS rebinding).
"""

import hmac
import re

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

METHODS = ("GET", "HEAD")
LOOPBACK_HEADER = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:[0-9]+)?", re.IGNORECASE | re.ASCII)
"""Any port: a tunnel's end may have another than ours."""
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
"""Sent with every answer. Nothing is loaded from elsewhere, no script runs that is not a file of ours, and no text can
become markup: with these trusted types the browser refuses innerHTML altogether."""


class Guard:
    """Refuses whatever is not a reading request with the token, and adds HEADERS to every answer."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app, self._token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request, or passes it on without the token in its path."""
        if scope["type"] != "http":
            return  # No web sockets: uvicorn answers 403.

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
        # A target need not be a path: OPTIONS has *, CONNECT a host.
        given = scope["path"].partition("/")[2].partition("/")[0].encode(errors="replace")
        if not hmac.compare_digest(given, self._token.encode()):
            return PlainTextResponse("Open the whole address that noether watch has printed.\n", 403)
        if scope["method"] not in METHODS:
            return PlainTextResponse("This page only reads.\n", 405, {"Allow": ", ".join(METHODS)})
        return None

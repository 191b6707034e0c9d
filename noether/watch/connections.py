"""Limits the page's connections: how long a request may take to arrive, and how many connections may be open."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Seconds in which a whole request, with its body, must arrive after the connection's start or the previous answer."""
MOST_CONNECTIONS = 64
"""The most open connections; a browser opens only six."""
MOST_OF_A_HEADER = 2**14
"""The most bytes of a request's line and headers."""


class BoundedConnection(H11Protocol):
    """Closes itself if a request is not complete in time. If too many are open, the one waiting longest is closed."""

    connections: set[Any]
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            min(filter(BoundedConnection.waits, self.connections), key=lambda one: one._timer.when()).close()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this request's body."""
        self._wait()
        super().on_response_complete()

    def waits(self) -> bool:
        """Return whether no answer is in progress, because no complete request has arrived."""
        return self.cycle is None or self.cycle.response_complete

    def close(self) -> None:
        """Close the connection if it still waits; do so cleanly if possible, so that a browser knows it may retry."""
        if self.waits():
            (self.transport.abort if self.transport.get_write_buffer_size() else self.transport.close)()

    def _wait(self) -> None:
        if hasattr(self, "_timer"):
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_S, self.close)

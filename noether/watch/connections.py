"""Limits the page's connections: how long a request may take to arrive, and how many connections may be open."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Seconds for a whole request, body included, from the connection's start or the previous answer."""
MOST_CONNECTIONS = 64
"""A browser opens only six."""
MOST_OF_A_HEADER = 2**14
"""The most bytes of a request's line and headers."""


class BoundedConnection(H11Protocol):
    """Closes a connection whose request is not complete in time; if there are too many, the one waiting longest."""

    connections: set[Any]
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Start waiting for the first request."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            min(filter(BoundedConnection.waits, self.connections), key=lambda one: one._timer.when()).close()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one's body."""
        self._wait()
        super().on_response_complete()

    def waits(self) -> bool:
        """Return whether no answer is in progress: the request has not arrived, or not completely."""
        return self.cycle is None or self.cycle.response_complete

    def close(self) -> None:
        """Close the connection if it still waits; cleanly if possible, so that a browser knows that it may retry."""
        if self.waits():
            (self.transport.abort if self.transport.get_write_buffer_size() else self.transport.close)()

    def _wait(self) -> None:
        if hasattr(self, "_timer"):
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_S, self.close)

"""Limits the connections to the page: the time in which a request must arrive, and the count of open connections."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""The time (s) after the connection's start, or after the last answer, in which a whole request must arrive."""
MOST_CONNECTIONS = 64
"""The maximum number of open connections; a browser opens only six."""
MOST_OF_A_HEADER = 2**14
"""The maximum size in bytes of a request's first line and headers."""


class BoundedConnection(H11Protocol):
    """A connection, closed if a request is not complete in time, or if too many are open and it has waited longest."""

    connections: set[Any]
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Start the time limit for the first request; if too many connections are open, close one."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            min(filter(BoundedConnection.waits, self.connections), key=lambda one: one._timer.when()).close()

    def on_response_complete(self) -> None:
        """Start the time limit for the next request, or for the rest of this request's body."""
        self._wait()
        super().on_response_complete()

    def waits(self) -> bool:
        """Return whether the connection waits for a request, that is, no answer is in progress."""
        return self.cycle is None or self.cycle.response_complete

    def close(self) -> None:
        """Close the connection if it still waits for a request; cleanly if possible, so that a browser can retry."""
        if self.waits():
            (self.transport.abort if self.transport.get_write_buffer_size() else self.transport.close)()

    def _wait(self) -> None:
        if hasattr(self, "_timer"):
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_S, self.close)

"""The connections of the page: how long a request may take to come, and how many wait for theirs."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_S = 10.0
"""Seconds for a whole request, its body too, from the connection or from the last answer on."""
MOST_CONNECTIONS = 64
"""A browser opens six."""
MOST_OF_A_HEADER = 2**14
"""Bytes of a request's line and headers."""


class BoundedConnection(H11Protocol):
    """Closes a connection whose request is not whole in time; of too many, the one that has kept waiting longest."""

    connections: set[Any]
    _timer: asyncio.TimerHandle

    def connection_made(self, transport: Any) -> None:
        """Begins to wait for the first request."""
        super().connection_made(transport)
        self._wait()
        if len(self.connections) > MOST_CONNECTIONS:
            min(filter(BoundedConnection.waits, self.connections), key=lambda one: one._timer.when()).close()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the rest of this one's body."""
        self._wait()
        super().on_response_complete()

    def waits(self) -> bool:
        """Return whether no answer is being made: the request has not come, or not whole."""
        return self.cycle is None or self.cycle.response_complete

    def close(self) -> None:
        """Close the connection if it still waits: in order, which tells a browser that it may ask again."""
        if self.waits():
            (self.transport.abort if self.transport.get_write_buffer_size() else self.transport.close)()

    def _wait(self) -> None:
        if hasattr(self, "_timer"):
            self._timer.cancel()
        self._timer = self.loop.call_later(REQUEST_S, self.close)

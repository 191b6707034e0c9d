"""A connected socket that carries JSON objects, one on each line."""

import contextlib
import json
import socket
import struct
import time
from collections.abc import Mapping
from multiprocessing.connection import wait
from typing import Any

SEND_S = 2
"""Seconds that a peer may take to accept a line; one that takes longer counts as gone."""

LONGEST_LINE = 1 << 20
"""Bytes; a longer line was not written by this program."""

MOST_PER_READ = 1 << 22
"""Bytes taken at a time, so that a peer that never pauses cannot keep a reader busy."""


class Unanswered(Exception):
    """The other side did not answer, or what it said is not a JSON object."""


class Late(Unanswered):
    """The peer is there, and has not answered in time."""


class Garbled(Unanswered):
    """The other side sends something other than JSON objects: at a port, it is another program."""


class JsonLines:
    """A connected socket that sends and receives JSON objects."""

    def __init__(self, connected: socket.socket, longest_line: int = LONGEST_LINE) -> None:
        self.socket = connected
        self.longest_line = longest_line
        self._buffer = b""
        self._waiting: list[dict[str, Any]] = []
        self._garbage = False
        connected.setblocking(True)  # Reads say MSG_DONTWAIT, writes have a limit.
        connected.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", SEND_S, 0))
        connected.set_inheritable(False)
        with contextlib.suppress(OSError):
            connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, message: Mapping[str, Any]) -> bool:
        """Sends an object; returns whether the peer took it."""
        try:
            self.socket.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return False
        return True

    def read(self) -> tuple[list[dict[str, Any]], bool]:
        """Returns the objects that have come, without waiting, and whether the peer is still there.

        A peer that sends anything but JSON objects counts as gone.
        """
        alive = self._take_what_has_come()
        messages, self._waiting = self._waiting, []
        return messages, alive

    def receive(self, seconds: float) -> dict[str, Any]:
        """Returns the next object.

        Raises:
            Unanswered: none came within `seconds`, or the peer is gone.
            Garbled: the peer sends something else.
        """
        deadline, alive = time.monotonic() + seconds, True
        while not self._waiting:
            if not alive:
                if self._buffer or self._garbage:
                    raise Garbled("another program answers there")
                raise Unanswered("the connection was closed")
            left = deadline - time.monotonic()
            if left <= 0:
                raise Late(f"no answer within {seconds:.0f} s")
            if wait([self.socket], left):
                alive = self._take_what_has_come()
        return self._waiting.pop(0)

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()

    def _take_what_has_come(self) -> bool:
        taken = 0
        try:
            while taken < MOST_PER_READ and len(self._buffer) <= self.longest_line:
                part = self.socket.recv(1 << 16, socket.MSG_DONTWAIT)
                self._buffer += part
                taken += len(part)
                if not part or not self._split():
                    return False
        except BlockingIOError:
            pass
        except OSError:
            return False
        return len(self._buffer) <= self.longest_line

    def _split(self) -> bool:
        """Moves the whole lines of the buffer to the waiting objects; returns False at one that is not an object."""
        *lines, self._buffer = self._buffer.split(b"\n")
        for line in lines:
            try:
                message = json.loads(line)
            except (ValueError, RecursionError):
                message = None
            if not isinstance(message, dict):
                self._garbage = True
                return False
            self._waiting.append(message)
        return True

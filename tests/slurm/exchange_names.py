"""One of two tasks, on n1 and n2: tells the other its host's name over TCP, prints what it heard and from where."""

import socket
import time

PORT = 29400
LIMIT_S = 60


def connect(host: str) -> socket.socket:
    """Connect as soon as the other task listens."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        try:
            return socket.create_connection((host, PORT), timeout=LIMIT_S)
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def main() -> None:
    """Listen, tell, hear."""
    name = socket.gethostname()
    with socket.create_server(("", PORT)) as server:
        server.settimeout(LIMIT_S)
        with connect({"n1": "n2", "n2": "n1"}[name]) as outgoing:
            outgoing.sendall(name.encode())
            outgoing.shutdown(socket.SHUT_WR)
            incoming, (address, _) = server.accept()
            with incoming:
                print(name, "heard", incoming.recv(100).decode(), "from", address)


if __name__ == "__main__":
    main()

"""Tells from an exception of gloo, NCCL or torch's store that a peer is gone or late: nothing else reads their words.

They have no error codes of their own. gloo's and the store's words were seen in torch 2.13; NCCL's and its watchdog's
are those of their sources. What is read here only chooses among several ranks' reports.
"""

import re

from noether.common.errors import RanksLate
from noether.launch.processes.context import Consequence

_TIMED_OUT = re.compile(r"Timed out waiting|timed out after|Timeout\(ms\)=|[Ww]atchdog caught collective")
_PEER_GONE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|Connection refused|Socket Timeout|"
    r"remote process exited|ncclRemoteError|ncclSystemError|[Cc]ommunicator was aborted|"
    r"failed to (send|recv)|Failed to (send|recv)|Connection was likely closed|Broken connection"
)
# gloo: "Timed out waiting 5000ms for recv operation to complete"; NCCL's watchdog: "Timeout(ms)=5000".
_WAITED = re.compile(r"(\d+) ?ms|Timeout\(ms\)=(\d+)")


def consequence_of(error: BaseException) -> tuple[Consequence, float]:
    """Returns what an exception says of the rank's peers, and how long it waited for them (s; 0: it does not say)."""
    if isinstance(error, RanksLate):
        return "timed-out", error.limit_s
    if not isinstance(error, RuntimeError) or type(error).__module__.partition(".")[0] not in ("builtins", "torch"):
        return "", 0.0  # Of a user's own class.
    if _TIMED_OUT.search(str(error)):
        found = _WAITED.search(str(error))
        return "timed-out", int(found[1] or found[2]) / 1000 if found else 0.0
    return ("lost-peer" if _PEER_GONE.search(str(error)) else ""), 0.0

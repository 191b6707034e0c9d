"""Reads the values of Slurm's options: counts, nodes, GPUs, arrays, signals. None: Slurm refuses the text."""

import re
from typing import NamedTuple

_SIGNALS = ("HUP", "INT", "QUIT", "ABRT", "KILL", "ALRM", "TERM", "USR1", "USR2", "URG", "CONT", "STOP", "TSTP", "TTIN",
            "TTOU", "XCPU")  # fmt: skip


def count(text: str | None) -> int | None:
    """Returns a number of at least 1, or None where Slurm refuses the text (0, -1, 0x10, 1k)."""
    return int(text) if text and re.fullmatch(r"\+?\d{1,9}", text) and int(text) > 0 else None


def node_range(text: str | None) -> tuple[int, int] | None:
    """Returns the least and the most nodes of `2` or `2-4`, or None where Slurm refuses the text or gives none."""
    match = re.fullmatch(r"(\d{1,9})(k?)(?:-(\d{1,9})(k?))?", text or "")
    if not match:
        return None
    least = int(match[1]) * (1024 if match[2] else 1)
    most = least if match[3] is None else int(match[3]) * (1024 if match[4] else 1)
    return (least, most) if 0 < least <= most else None


def gpus_in_gres(text: str) -> int | None:
    """Returns the GPUs that `gpu`, `gpu:4`, `gpu:a100:4` or a list with others asks for; None: not such a list.

    A type may begin with a digit where a number follows (`gpu:2080ti:4`); without one Slurm reads it as the number.
    """
    total = 0
    for item in (item for item in text.split(",") if item not in ("", "none", "help")):
        item = item.removeprefix("gres:").replace("gres/", "", 1)
        match = re.fullmatch(r"([A-Za-z_][\w-]*)(?::(?:[\w.-]+:)?(\d+)([kKmMgGtT]?)|:[A-Za-z_][\w.-]*)?", item)
        model = match and match[1] == "gpu" and match[2] and (match[3] or len(match[2]) > 3)
        # No node has a thousand GPUs: `gpu:3090` is one of that model. And gpus are a resource that no cluster has.
        if not match or model or match[1] == "gpus":
            return None
        if match[1] == "gpu":
            total += int(match[2] or 1)
    return total


def gpu_count(text: str | None) -> int | None:
    """Returns the GPUs of `4`, `a100:4`, `2080ti:4`, `a100` (one) or a list of such; None where Slurm refuses it."""
    total = 0
    for item in (text or "").split(","):
        match = re.fullmatch(r"(?:([\w.-]+):)?(\d+)|[A-Za-z_][\w.-]*\d[\w.-]*", item)
        if not match or match[1] == "gpu":
            return None
        total += int(match[2] or 1)
    return total


class SignalRequest(NamedTuple):
    """`--signal`: which, how long before the end in seconds, and whether the batch shell alone gets it."""

    name: str
    lead_s: int
    to_batch_shell: bool


def rising_array(text: str) -> str | None:
    """Returns the indices of an array (`0-7`, `1,3,5`, `0-7%2`), or None where Slurm refuses them."""
    form = r"\d+(-\d+(:\d+)?)?(,\d+(-\d+(:\d+)?)?)*(%\d+)?|\[.*\].*"
    rising = all(int(first) <= int(last) for first, last in re.findall(r"(\d+)-(\d+)", text))
    return text if rising and re.fullmatch(form, text) else None


def signal_request(text: str) -> SignalRequest | None:
    """Reads `[{R|B}:]SIGNAL[@seconds]`, or returns None where Slurm refuses it."""
    match = re.fullmatch(r"(?:([RrBb]{1,2}):)?([A-Za-z]+\d?|\d{1,2})(?:@(\d{1,5}))?", text)
    if not match:
        return None
    name, lead = match[2].upper().removeprefix("SIG"), int(match[3] or 60)  # The default of sbatch(1).
    known = 0 < int(name) < 65 if name.isdigit() else name in _SIGNALS
    # The field is 16 bits wide in Slurm.
    return SignalRequest(name, lead, "B" in (match[1] or "").upper()) if known and lead < 65_535 else None

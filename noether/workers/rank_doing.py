"""What a rank was doing when another failed, as its launcher saw it."""

from dataclasses import dataclass

from noether.workers.rank_state import BEFORE_ALL, Standing


@dataclass(frozen=True)
class Doing:
    """What one rank does, as a phrase, with its Python stack where it gave one."""

    rank: int
    host: str
    phrase: str
    stack: str = ""
    standing: Standing = BEFORE_ALL
    stopped: bool = False

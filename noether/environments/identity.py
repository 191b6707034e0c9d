"""Names the run that this process belongs to. All ranks work it out alike, and compare it when they meet."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# What a launcher calls the run, the step before the job: the same in all of its processes, and in no other run's.
RUN_NAMES = (
    ("SLURM_JOB_ID", "SLURM_STEP_ID"),
    ("TORCHELASTIC_RUN_ID",),
    ("PMIX_NAMESPACE",),
    ("OMPI_MCA_ess_base_jobid",),
    ("PMI_JOBID",),
)
# What all ranks of a run must have been given alike. Paths, devices and names of folders may differ between hosts.
SHARED_SECTIONS = ("seed", "model", "task", "optimizer", "schedule", "trainer")


@dataclass(frozen=True)
class RunIdentity:
    """One run, and no other: what started it, its number of ranks, its attempt, its configuration's digest, and the
    kind of device that all ranks compute on.
    """

    launcher: str = ""
    world_size: int = 1
    attempt: int = 0
    configuration: str = ""
    device_kind: str = ""

    def __str__(self) -> str:
        named = f"{self.launcher}, {self.world_size} ranks, attempt {self.attempt}"
        named += f", configuration {self.configuration}" if self.configuration else ""
        return named + (f", on {self.device_kind}" if self.device_kind else "")

    def printable(self) -> str:
        """Return `str` of it without characters that a terminal acts on: it may be what a stranger said."""
        return "".join(letter if letter.isprintable() else "?" for letter in str(self)[:500])

    @property
    def digest(self) -> str:
        """A short name for files."""
        return hashlib.sha256(self.as_text().encode()).hexdigest()[:16]

    def as_text(self) -> str:
        """Return it as one line of JSON, for `from_text`."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "RunIdentity":
        """Read what `as_text` wrote.

        Raises:
            ValueError: that is not an identity.
        """
        try:
            read = cls(**json.loads(text))
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not the identity of a run: {text[:200]!r}") from error
        if [type(value) for value in vars(read).values()] != [type(value) for value in vars(NO_RUN).values()]:
            raise ValueError(f"not the identity of a run: {text[:200]!r}")
        return read


NO_RUN = RunIdentity()
"""Of a process that was not told; equal in all such."""


def run_identity(
    launcher: str, world_size: int, attempt: int, environ: Mapping[str, str], configuration: str, device_kind: str = ""
) -> RunIdentity:
    """Return the identity of a run from what each of its processes knows.

    Args:
        launcher: of the placement.
        world_size: ranks of the run.
        attempt: starts of this run before this one.
        environ: names the job, the step, the run.
        configuration: from `configuration_digest`.
        device_kind: "cpu" or "cuda": a node without its driver takes the CPU, where the others wait for NCCL.
    """
    names = []
    for variables in RUN_NAMES:
        values = [environ[name] for name in variables if environ.get(name)]
        belongs = variables[0].partition("_")[0] == {"slurm": "SLURM", "torchrun": "TORCHELASTIC"}.get(launcher, "")
        if values and (belongs or launcher == "mpi"):
            names.append(".".join(values))
            break
    return RunIdentity(" ".join([launcher, *names]), world_size, attempt, configuration, device_kind)


def run_key(settings: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return what only the processes of this run know, as far as the hosts' other users cannot read its settings.

    NOETHER_RUN_KEY, the same on every host, adds a secret of the user's own.
    """
    return hashlib.sha256(f"{_shared(settings)}\0{environ.get('NOETHER_RUN_KEY', '')}".encode()).hexdigest()


def _shared(settings: Mapping[str, Any]) -> str:
    shared = {name: settings[name] for name in SHARED_SECTIONS if name in settings}
    return json.dumps(shared, sort_keys=True, default=str)


def configuration_digest(settings: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits of the settings that all ranks must share."""
    return hashlib.sha256(_shared(settings).encode()).hexdigest()[:8]

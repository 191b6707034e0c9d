"""Identify the run that this process belongs to. All ranks compute the same identity, and compare it as they join."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Variables in which a launcher names the run: the same in all its processes, and different in every other run. The
# first group with a value is used, because mpirun may itself run inside a job.
_STEP, _ELASTIC = ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("TORCHELASTIC_RUN_ID",)
RUN_NAMES = {
    "slurm": (_STEP,),
    "torchrun": (_ELASTIC,),
    "mpi": (_STEP, _ELASTIC, ("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",), ("PMI_JOBID",)),
}
# Settings that must be the same on all ranks of a run. Paths, devices and folder names may differ between hosts.
SHARED_SECTIONS = ("nodes", "seed", "model", "task", "optimizer", "schedule", "trainer", "script")


@dataclass(frozen=True)
class RunIdentity:
    """The identity of one run: its launcher, number of ranks, restarts, configuration digest, device kind and job.

    The device kind is compared because, on a node whose driver fails, ranks would use the CPU while other ranks wait
    for NCCL. `job` is the launcher's name for the job, which no other run has; "" if there is none.
    """

    launcher: str = ""
    world_size: int = 1
    restarts: int = 0
    configuration: str = ""
    device_kind: str = ""
    job: str = ""

    def __str__(self) -> str:
        named = f"{self.launcher} {self.job}".rstrip() + f", {self.world_size} ranks, restart {self.restarts}"
        named += f", configuration {self.configuration}" if self.configuration else ""
        return named + (f", on {self.device_kind}" if self.device_kind else "")

    def is_of_same_start(self, other: "RunIdentity") -> bool:
        """Return whether launcher, job and restarts agree: both were started as one run, even if their settings differ.

        Without a job's name, this is likely for processes that look for rank 0 at the same port, but not certain.
        """
        return all(getattr(self, name) == getattr(other, name) for name in ("launcher", "job", "restarts"))

    @property
    def digest(self) -> str:
        """A short digest for use in file names."""
        return hashlib.sha256(self.as_text().encode()).hexdigest()[:16]

    def as_text(self) -> str:
        """Return this identity as one line of JSON, which `from_text` reads."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "RunIdentity":
        """Read what `as_text` wrote. ValueError: the text is not an identity."""
        try:
            read = cls(**json.loads(text))
            if [type(value) for value in vars(read).values()] != [type(value) for value in vars(cls()).values()]:
                raise TypeError("a part of another type")
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not the identity of a run: {text[:200]!r}") from error
        return read


def job_name(launcher: str, environ: Mapping[str, str]) -> str:
    """Return the launcher's name for the job, the step or the run; "" if it has none."""
    groups = RUN_NAMES.get(launcher, ())
    names = (".".join(environ[name] for name in group if environ.get(name)) for group in groups)
    return next(filter(None, names), "")


def run_key(settings: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return a key that only this run's processes can compute, provided other users cannot read its settings.

    NOETHER_RUN_KEY, set to the same value on every host, adds the user's own secret to the key.
    """
    return hashlib.sha256(f"{_shared(settings)}\0{environ.get('NOETHER_RUN_KEY', '')}".encode()).hexdigest()


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same on all ranks."""
    return {name: settings[name] for name in SHARED_SECTIONS if name in settings}


def configuration_digest(settings: Mapping[str, Any]) -> str:
    """Return a digest, eight hexadecimal digits, of the settings that must be the same on all ranks."""
    return hashlib.sha256(_shared(settings).encode()).hexdigest()[:8]


def _shared(settings: Mapping[str, Any]) -> str:
    return json.dumps(shared_settings(settings), sort_keys=True, default=str)

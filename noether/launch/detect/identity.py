"""Identify the run that this process belongs to. All ranks compute the same identity, and compare it as they join."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

# Variables in which a launcher names the run. A name is the same in all processes of a run, and differs between runs.
# The first group with a value is used, because mpirun itself can run inside a job.
_STEP, _ELASTIC = ("SLURM_JOB_ID", "SLURM_STEP_ID"), ("TORCHELASTIC_RUN_ID",)
RUN_NAMES = {
    "slurm": (_STEP,),
    "torchrun": (_ELASTIC,),
    "mpi": (_STEP, _ELASTIC, ("PMIX_NAMESPACE",), ("OMPI_MCA_ess_base_jobid",), ("PMI_JOBID",)),
}
# Settings that must be the same on all ranks of a run. Paths, devices and folder names can differ between hosts.
SHARED_SECTIONS = ("nodes", "seed", "model", "task", "optimizer", "schedule", "trainer", "script")


@dataclass(frozen=True)
class RunIdentity:
    """The identity of one run: its launcher, number of ranks, restarts, configuration digest, device kind and job.

    The device kind is included because, if the driver of one node fails, the ranks there would use the CPU, and the
    ranks of other nodes would wait for NCCL. `job`: the launcher's unique name for the job; "" if there is none.
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
        """Return whether launcher, job and restarts are equal, which shows that both processes were started as one run.

        Their settings can still differ. If `job` is "", two separate runs can also be equal in these attributes.
        """
        return all(getattr(self, name) == getattr(other, name) for name in ("launcher", "job", "restarts"))

    @property
    def digest(self) -> str:
        """A short digest for use in file names."""
        return hashlib.sha256(self.as_text().encode()).hexdigest()[:16]

    def as_text(self) -> str:
        """Return this identity as a line of JSON that `from_text` can read."""
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_text(cls, text: str) -> "RunIdentity":
        """Read an identity from text that `as_text` returned. ValueError: the text is not an identity."""
        try:
            read = cls(**json.loads(text))
            if [type(value) for value in vars(read).values()] != [type(value) for value in vars(cls()).values()]:
                raise TypeError("a part of another type")
        except (TypeError, RecursionError) as error:
            raise ValueError(f"not the identity of a run: {text[:200]!r}") from error
        return read


def job_name(launcher: str, environ: Mapping[str, str]) -> str:
    """Return the launcher's name for the job, step or run, or "" if the launcher gives none."""
    groups = RUN_NAMES.get(launcher, ())
    names = (".".join(environ[name] for name in group if environ.get(name)) for group in groups)
    return next(filter(None, names), "")


def run_key(settings: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return a key that only processes of this run can compute, as long as other users cannot read the run's settings.

    The user can add a secret to the key by setting NOETHER_RUN_KEY to the same value on every host.
    """
    return hashlib.sha256(f"{_shared(settings)}\0{environ.get('NOETHER_RUN_KEY', '')}".encode()).hexdigest()


def shared_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that must be the same on all ranks."""
    return {name: settings[name] for name in SHARED_SECTIONS if name in settings}


def configuration_digest(settings: Mapping[str, Any]) -> str:
    """Return eight hexadecimal digits: a digest of the settings that must be the same on all ranks."""
    return hashlib.sha256(_shared(settings).encode()).hexdigest()[:8]


def _shared(settings: Mapping[str, Any]) -> str:
    return json.dumps(shared_settings(settings), sort_keys=True, default=str)

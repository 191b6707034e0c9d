"""Where the numbers of a run go besides the console and metrics.jsonl."""

from pydantic import Field, field_validator

from noether.common.suggest import nearest
from noether.config.section import Section

SERVICES = ("wandb", "mlflow")
"""The services that come with noether; `noether/tracking/services.py` has the class of each."""


class TrackerConfig(Section):
    """Where the numbers of a run go besides the console and metrics.jsonl."""

    tensorboard: bool = Field(True, description="Write event files into the run folder's tensorboard/.")
    services: tuple[str, ...] = Field(
        (), description="Further trackers: wandb, mlflow, or the dotted path of your own; several at once."
    )
    report: bool = Field(True, description="Write report.html at the end of the run.")

    @field_validator("services")
    @classmethod
    def _services_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in SERVICES and "." not in name:
                near = nearest(name, SERVICES)
                meant = f"; did you mean {near}?" if near else ""
                raise ValueError(f"there is no tracker {name}: {', '.join(SERVICES)}, or a dotted path{meant}")
        return names

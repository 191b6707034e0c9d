"""Settings for where a run's numbers go, besides the console and metrics.jsonl."""

from pydantic import Field, field_validator

from noether.common.suggest import nearest
from noether.config.section import Section
from noether.config.setting_error import SettingError

SERVICES = ("wandb", "mlflow")
"""The services that noether supports; their classes are in `noether/runs/tracking/services.py`."""


class TrackerConfig(Section):
    """Where a run's numbers go, besides the console and metrics.jsonl."""

    tensorboard: bool = Field(True, description="Write event files to tensorboard/ in the run folder.")
    services: tuple[str, ...] = Field(
        (), description="Additional trackers, one or more of wandb, mlflow and the dotted path of your own."
    )
    report: bool = Field(True, description="Write report.html at the end of the run.")

    @field_validator("services")
    @classmethod
    def _services_are_known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name not in SERVICES and "." not in name:
                near = nearest(name, SERVICES)
                meant = f"; did you mean {near}?" if near else ""
                problem = f"there is no tracker {name}: {', '.join(SERVICES)}, or a dotted path{meant}"
                raise SettingError("unknown-tracker", "", problem)
        return names

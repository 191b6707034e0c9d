"""Where the numbers of a run go besides the console and metrics.jsonl."""

from pydantic import Field

from noether.config.section import Section


class TrackerConfig(Section):
    """Where the numbers of a run go besides the console and metrics.jsonl."""

    tensorboard: bool = Field(True, description="Write event files into the run folder's tensorboard/.")
    report: bool = Field(True, description="Write report.html at the end of the run.")

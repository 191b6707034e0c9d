"""What did a run learn, how was it trained, and where? One HTML file, read from the run folder; no torch."""

from noether.report.page import write_report

__all__ = ["write_report"]

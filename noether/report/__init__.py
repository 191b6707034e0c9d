"""The report of a run: one HTML file made from the run folder, without torch."""

from noether.report.page import write_report

__all__ = ["write_report"]

"""Data sets, models, tasks and their evaluation, for any field of application."""

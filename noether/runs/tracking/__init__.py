"""Trackers, which write a run's metrics to the console, to files and to services."""

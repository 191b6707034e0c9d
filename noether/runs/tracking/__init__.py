"""Trackers, which write a run's numbers to the console, to files and to services."""

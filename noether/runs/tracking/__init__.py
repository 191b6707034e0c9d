"""Numbers of a run, written to the console, to files and to services."""

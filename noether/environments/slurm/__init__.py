"""Slurm: the step that this process is in, node lists, and the queue."""

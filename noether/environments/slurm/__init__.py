"""Slurm: the step this process is in, its node lists, and the queue."""

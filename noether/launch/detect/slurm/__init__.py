"""A Slurm step: its tasks, nodes and devices."""

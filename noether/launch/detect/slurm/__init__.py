"""Read a Slurm step: its tasks, nodes and devices."""

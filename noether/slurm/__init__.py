"""Asking Slurm for a place: job scripts, submitit, and what became of the jobs."""

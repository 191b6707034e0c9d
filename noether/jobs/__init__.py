"""Asking Slurm for a place: a job, its script, its submission."""

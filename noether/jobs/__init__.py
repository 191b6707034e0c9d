"""Slurm jobs: describing a job, writing its script, submitting it, and linting job scripts."""

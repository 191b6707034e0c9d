"""Slurm jobs: describe one, write its script, submit it, lint it."""

"""Submitting to Slurm: job scripts and submitit."""

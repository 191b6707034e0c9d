"""Submits jobs to Slurm, with job scripts or through submitit."""

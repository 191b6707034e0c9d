"""Submits jobs to Slurm as scripts for sbatch."""

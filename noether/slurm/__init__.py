"""Asking Slurm for a place: job scripts, their submission, and what is wrong with them."""

"""slurm-lint: finds mistakes in Slurm job scripts before the jobs wait in the queue."""

__version__ = "0.1.0"

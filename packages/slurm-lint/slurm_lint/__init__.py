"""slurm-lint: find what is wrong with Slurm job scripts before they wait in the queue."""

__version__ = "0.1.0"

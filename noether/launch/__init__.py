"""The launch of a run: this process's ranks, their processes, and their process group."""

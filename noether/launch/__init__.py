"""Launch a run: place the ranks of this process, start a process for each, and join them in a process group."""

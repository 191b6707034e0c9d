"""Starts, watches and ends the processes of a run on this host, and links them to other hosts."""

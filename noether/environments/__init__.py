"""Finds out how this process was started and which ranks it runs: one file or folder for each launcher. No torch."""

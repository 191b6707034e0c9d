"""Folders of simulated cases: inspected, prepared once into the store, and read from it for training."""

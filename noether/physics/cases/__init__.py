"""Prepare users' own simulations for training: a map describes the files, and each case is prepared once."""

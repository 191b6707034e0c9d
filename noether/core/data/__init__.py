"""Samples to batches: data sets, their global order, loaders."""

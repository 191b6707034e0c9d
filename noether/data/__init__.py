"""Samples → batches: global order, loaders, data sets. Knows no model."""

"""Batch → predictions: one readable file a model, on shared layers. Knows no trainer."""

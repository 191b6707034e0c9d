"""Predictions → loss and metrics. Knows no launcher."""

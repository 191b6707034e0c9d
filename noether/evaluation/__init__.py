"""Weights → metrics in physical units, pictures, report."""

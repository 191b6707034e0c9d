"""Weights → figures in physical units, pictures, report."""

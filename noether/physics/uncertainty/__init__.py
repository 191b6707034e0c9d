"""Uncertainty of predictions: ensembles and conformal intervals."""

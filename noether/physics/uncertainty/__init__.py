"""Ensembles and conformal intervals: how sure a prediction is."""

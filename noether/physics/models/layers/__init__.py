"""Layers that the models of fields at points share."""

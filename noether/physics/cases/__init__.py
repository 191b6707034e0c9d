"""Simulations of one's own: read by a map, prepared once, trained on."""

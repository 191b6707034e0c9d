"""Users' own simulations: read by a map, prepared once, trained on."""

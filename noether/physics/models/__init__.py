"""Models of points: UPT, AB-UPT, Transformer, Transolver, MLP."""

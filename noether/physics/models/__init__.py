"""Models that predict fields at points: UPT, AB-UPT, Transformer, Transolver, MLP."""

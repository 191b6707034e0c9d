"""A batch to predictions: building a model, and the models of images."""

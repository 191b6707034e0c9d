"""Models: building a model by its kind, and the models of images."""

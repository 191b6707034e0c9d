"""Models: build one by its kind, and the models of images."""

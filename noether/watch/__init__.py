"""A local page that shows runs while they train, from the files in their folders. Does not import torch."""

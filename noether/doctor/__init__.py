"""Finds problems of this machine, job or image, and suggests fixes. Only child processes import torch."""

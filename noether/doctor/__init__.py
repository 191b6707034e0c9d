"""Finds problems of this machine, job or image, and how to fix them. Only child processes import torch."""

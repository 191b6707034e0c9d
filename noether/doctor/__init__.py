"""Finds what is wrong with this machine, job or image, and how to fix it. Only child processes import torch."""

"""noether: one training program for every machine."""

__version__ = "0.1.0"

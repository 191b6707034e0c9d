"""Where am I, and which workers do I answer for: one file per environment. Imports no torch, knows no model."""

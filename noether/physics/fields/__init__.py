"""The task of predicting fields at points: its losses, metrics in physical units, forces and baselines."""

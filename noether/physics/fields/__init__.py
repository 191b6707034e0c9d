"""The task that predicts fields at points: losses, metrics in physical units, forces, baselines."""

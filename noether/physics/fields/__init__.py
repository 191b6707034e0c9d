"""The task of fields at points: losses, metrics in physical units, forces, baselines."""

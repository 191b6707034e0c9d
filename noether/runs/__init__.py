"""A run on disk: its folder, the right to write to it, its records, and its status, logs and end. No torch."""

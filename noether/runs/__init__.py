"""A run on disk: its folder, its write lease, its records, status and logs, and how to cancel it. No torch."""

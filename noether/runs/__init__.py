"""A run on disk: its folder, its write lease, records, status, logs and cancellation. No torch."""

"""A training state → verified folders on disk, and back."""

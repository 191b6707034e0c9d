"""Checkpoints: save a training state to verified folders on disk, and load it back."""

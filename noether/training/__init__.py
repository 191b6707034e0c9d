"""Batches → weights: batch plan, precision, optimisers, schedules, checkpoints, the loop."""

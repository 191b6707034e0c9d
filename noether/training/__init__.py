"""From batches to weights: building a run, the loop, updates, optimisers, schedules and evaluation."""

"""Plans what a run would do here: ranks, batches and length. No torch."""

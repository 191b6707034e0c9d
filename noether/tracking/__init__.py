"""Numbers → people: console, metrics.jsonl, TensorBoard."""

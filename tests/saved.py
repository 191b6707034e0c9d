"""The content of meta.json that all checkpoints share, for tests that write checkpoints themselves."""

META = {"world_size": 1, "effective_batch_size": 1, "micro_batch_size": 1, "updates_per_epoch": 2, "config": {}}

"""The meta.json content shared by all checkpoints, for tests that write one themselves."""

META = {"world_size": 1, "effective_batch_size": 1, "micro_batch_size": 1, "updates_per_epoch": 2, "config": {}}

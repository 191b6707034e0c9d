"""What was asked: compose YAML, validate, dump. Knows nothing of torch."""

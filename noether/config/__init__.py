"""Compose the configuration from YAML, validate it and dump it. Never imports torch."""

"""Composes the configuration from YAML, validates it and dumps it. Never imports torch."""

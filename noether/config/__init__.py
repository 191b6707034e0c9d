"""The configuration: composed from YAML, validated and dumped. Never imports torch."""

"""The configuration: composed from YAML files and arguments, validated, and written as YAML. Never imports torch."""

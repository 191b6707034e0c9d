"""A package, because a second module named conftest would hide tests/conftest.py from the tests that import it."""

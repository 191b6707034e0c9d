"""The tests on a Slurm cluster. They are a package, so that their conftest does not hide tests/conftest.py."""

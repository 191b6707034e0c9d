"""`python -m noether` is `noether`."""

from noether.cli import main

main()

"""Makes `python -m noether` run the command `noether`."""

from noether.cli import main

main()

#!/usr/bin/env python3
"""The image's only program: python-fire over the table of commands in `noether/cli/commands.py`.

Installed or linked under a command's name, it runs that command; under any other name it is `noether`.
"""

from noether.cli.entry import main

if __name__ == "__main__":
    main()

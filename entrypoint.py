#!/usr/bin/env python3
"""The image's only program. It runs the commands that `noether/cli/commands.py` lists, by means of python-fire.

Installed or linked under the name of a command, it runs that command; under any other name, it acts as `noether`.
"""

from noether.cli.entry import main

if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""The one program of the image: `train …` and `noether train …` are the same program.

Installed or linked under the name of a verb it runs that verb, under any other name it is `noether`.
"""

import sys
from pathlib import Path

from noether.cli.commands import programs
from noether.cli.entry import main

if __name__ == "__main__":
    verb = programs().get(Path(sys.argv[0]).name)
    main([verb, *sys.argv[1:]] if verb else sys.argv[1:])

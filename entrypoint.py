#!/usr/bin/env python3
"""The one door of the image: `train …` and `noether train …` are the same program.

Installed or linked under the name of a verb it runs that verb, under any other name it is `noether`.
"""

import sys
from pathlib import Path

from noether.cli import main, verbs

if __name__ == "__main__":
    name = Path(sys.argv[0]).name.removeprefix("noether-")
    main([name, *sys.argv[1:]] if name in verbs() else sys.argv[1:])

"""Run `python -m slurm_lint`."""

import sys

from slurm_lint.command import main

sys.exit(main())

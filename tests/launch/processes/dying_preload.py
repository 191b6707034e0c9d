"""A preload that takes the fork server down with it."""

import os

if os.environ.get("NOETHER_PARENT_PID"):
    os._exit(1)

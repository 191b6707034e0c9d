"""The signals that ask a process to stop."""

import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Each asks a run to stop with everything saved."""

JOB_STOP_SIGNAL = "USR2"
"""What Slurm is asked to send to the ranks of a job before its time limit, and `noether cancel` sends."""

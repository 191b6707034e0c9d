"""The signals that ask a process to stop."""

import signal

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
"""Each asks a run to stop with everything saved."""

SECOND_INTERRUPT_S = 0.5
"""Two Ctrl-C closer together are one: a terminal, a shell and a container may each pass it on."""

JOB_STOP_SIGNAL = "USR2"
"""Tells the ranks of a job to save and stop: sent by Slurm before its time limit, and by `noether cancel`.

submitit uses it too. NCCL uses SIGUSR1 in places (submitit #1697).
"""

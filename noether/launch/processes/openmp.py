"""Makes OpenMP's threads wait for each other with a short spin, so that a busy machine costs little."""

from collections.abc import Mapping

SPIN_COUNT = "10000"
"""Tens of microseconds; libgomp's own default spins on and on. Measured with benchmarks/openmp_spin.py on two cores:
an update takes 0.35 of the time beside two busy processes, and 1.07 of it alone."""


def openmp_defaults(environ: Mapping[str, str]) -> dict[str, str]:
    """Returns what to add to the environment before libgomp is loaded: nothing where the user has said how to wait."""
    said = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
    return {} if any(name in environ for name in said) else {"GOMP_SPINCOUNT": SPIN_COUNT}

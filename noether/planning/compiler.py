"""Refuses torch.compile where the compiler that it calls is not installed, before anything starts."""

import shutil
from collections.abc import Callable, Mapping

from noether.errors import RequestError

# What TorchInductor runs for a CPU, and Triton for the launchers of its kernels on a GPU.
CPP_COMPILERS, C_COMPILERS = ("g++", "clang++"), ("gcc", "clang", "cc")


def refuse_without_compiler(
    device_kind: str,
    environ: Mapping[str, str],
    engine: str = "",
    which: Callable[[str], str | None] = shutil.which,
) -> None:
    """Checks that trainer.compile=true can work on this machine.

    Args:
        device_kind: "cpu", "cuda" or "mps", where the model is trained.
        environ: CXX and CC name another compiler.
        engine: whose container of the project's image this is in, for the message.
        which: finds a program on the PATH.

    Raises:
        RequestError: there is no compiler, naming what to install.
    """
    variable, known = ("CC", C_COMPILERS) if device_kind == "cuda" else ("CXX", CPP_COMPILERS)
    language, package = ("C", "gcc") if device_kind == "cuda" else ("C++", "g++")
    asked = environ.get(variable)
    if any(which(name) for name in ([asked] if asked else known)):
        return
    fix = f"apt-get install {package}      (or {variable}=COMPILER; or trainer.compile=false)"
    if engine:
        fix = (
            "trainer.compile=false      (of the images, those for CUDA have a C compiler, for GPUs; none has one for\n"
            f"C++, which a CPU needs: build an image FROM this one with {package})"
        )
    raise RequestError(
        f"trainer.compile=true needs a {language} compiler",
        seen=f"{variable}={asked}, which is not there" if asked else f"none of {', '.join(known)} on the PATH",
        expected=f"a {language} compiler: torch.compile writes {language} for device {device_kind} and compiles it",
        fix=fix,
    )

"""Refuses torch.compile, before anything starts, if the compiler that it needs is not installed."""

import shutil
from collections.abc import Callable, Mapping

from noether.errors import RequestError

# TorchInductor calls a C++ compiler for a CPU; Triton calls a C compiler for the launchers of its kernels on a GPU.
CPP_COMPILERS, C_COMPILERS = ("g++", "clang++"), ("gcc", "clang", "cc")


def refuse_without_compiler(
    device_kind: str,
    environ: Mapping[str, str],
    engine: str = "",
    which: Callable[[str], str | None] = shutil.which,
) -> None:
    """Checks that trainer.compile=true can work on this machine.

    Args:
        device_kind: the device that trains the model: "cpu", "cuda" or "mps".
        environ: CXX and CC choose another compiler.
        engine: the container engine if this runs in the project's image, for the message.
        which: finds a program on the PATH.

    Raises:
        RequestError: there is no compiler. The error names what to install.
    """
    variable, known = ("CC", C_COMPILERS) if device_kind == "cuda" else ("CXX", CPP_COMPILERS)
    language, package = ("C", "gcc") if device_kind == "cuda" else ("C++", "g++")
    asked = environ.get(variable)
    if any(which(name) for name in ([asked] if asked else known)):
        return
    fix = f"apt-get install {package}      (or {variable}=COMPILER; or trainer.compile=false)"
    if engine:
        fix = (
            "trainer.compile=false      (the CUDA images have a C compiler, for GPUs; no image has a C++ compiler,\n"
            f"which a CPU needs: build an image FROM this one with {package})"
        )
    raise RequestError(
        f"trainer.compile=true needs a {language} compiler",
        seen=f"{variable}={asked}, which does not exist" if asked else f"none of {', '.join(known)} on the PATH",
        expected=f"a {language} compiler: torch.compile writes {language} for device {device_kind} and compiles it",
        fix=fix,
    )

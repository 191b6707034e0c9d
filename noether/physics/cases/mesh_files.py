"""Read files with VTK and NumPy; raise, as errors, the messages that these libraries would print on broken files."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from noether.common.errors import RequestError, one_line


class Unfit(ValueError):
    """The error for a file that cannot be used, with noether's own message instead of a library's."""


def import_pyvista() -> ModuleType:
    """Import pyvista only when it is needed, and return the module. RequestError: pyvista is not installed."""
    try:
        import pyvista
    except ImportError as error:
        raise RequestError(
            "pyvista-not-installed",
            "meshes are read and written through pyvista, which is not installed here",
            seen=str(error),
            expected="noether, installed with its extra `mesh`",
            fix="pip install pyvista meshio h5py openpyxl      (or, in noether's checkout: pip install '.[mesh]')",
        ) from None
    from vtkmodules.vtkCommonCore import vtkLogger

    vtkLogger.SetStderrVerbosity(vtkLogger.VERBOSITY_OFF)  # `raising_what_vtk_says` raises VTK's messages.
    return pyvista


@contextmanager
def raising_what_vtk_says() -> Iterator[None]:
    """Raise ValueError if VTK reports an error in the context; VTK would only print it and return part of the file."""
    pyvista = import_pyvista()
    with pyvista.VtkErrorCatcher(send_to_logging=False) as caught:
        yield
    if said := [re.sub(r" *\(0x[0-9a-f]+\)", "", str(event.alert)) for event in caught.error_events]:
        # The pipeline reports only that a reader failed; the reader reports why.
        raise ValueError(next((words for words in said if "returned failure for request" not in words), said[0]))


def output_of(reader: Any, time: float | None = None) -> Any:
    """Read a mesh with a pyvista reader, at `time` if given. ValueError: VTK reports an error."""
    with raising_what_vtk_says():
        if time is None:
            reader.reader.Update()
        else:
            reader.reader.UpdateTimeStep(time)
    return import_pyvista().wrap(reader.reader.GetOutputDataObject(0))


def to_numpy(array: Any) -> np.ndarray:
    """Return a NumPy array that shares the memory of a VTK array."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    return np.asarray(vtk_to_numpy(array))


def read_array(path: Path) -> np.ndarray:
    """Read the array of a .npy file without running code from the file. RequestError: the file cannot be read."""
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise ValueError(array.dtype if isinstance(array, np.ndarray) else "several arrays")
    # NumPy parses the header as Python: a broken header can raise any of the parser's errors.
    except (Exception, RecursionError, MemoryError) as error:
        raise RequestError(
            "mesh-parts-unreadable",
            f"{path} cannot be read",
            seen="a file of another kind" if "pickle" in str(error) else one_line(error),  # NumPy suggests running it.
            expected="one array of numbers, saved by numpy.save",
        ) from None
    return array

"""Read with VTK and NumPy, raising their messages about broken files rather than printing them."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from noether.common.errors import RequestError, one_line


class Unfit(ValueError):
    """A file cannot be used, for a reason in noether's own words rather than a library's."""


def import_pyvista() -> ModuleType:
    """Return pyvista, imported only when meshes are read or written. RequestError: it is not installed."""
    try:
        import pyvista
    except ImportError as error:
        raise RequestError(
            "pyvista-not-installed",
            "meshes are read and written through pyvista, which is not installed here",
            seen=str(error),
            expected="noether with its extra `mesh`",
            fix="pip install pyvista meshio h5py openpyxl      (or, in noether's checkout: pip install '.[mesh]')",
        ) from None
    from vtkmodules.vtkCommonCore import vtkLogger

    vtkLogger.SetStderrVerbosity(vtkLogger.VERBOSITY_OFF)  # VTK's messages are raised, not printed.
    return pyvista


@contextmanager
def raising_what_vtk_says() -> Iterator[None]:
    """Raise ValueError with VTK's error message; VTK itself would print it, and return the part that it could read."""
    pyvista = import_pyvista()
    with pyvista.VtkErrorCatcher(send_to_logging=False) as caught:
        yield
    if said := [re.sub(r" *\(0x[0-9a-f]+\)", "", str(event.alert)) for event in caught.error_events]:
        # The pipeline reports only that a reader failed; the reader reports why.
        raise ValueError(next((words for words in said if "returned failure for request" not in words), said[0]))


def output_of(reader: Any, time: float | None = None) -> Any:
    """Return the mesh that a pyvista reader reads from its file at a time. Raise ValueError with VTK's message."""
    with raising_what_vtk_says():
        if time is None:
            reader.reader.Update()
        else:
            reader.reader.UpdateTimeStep(time)
    return import_pyvista().wrap(reader.reader.GetOutputDataObject(0))


def to_numpy(array: Any) -> np.ndarray:
    """Return a VTK array as a NumPy array that shares its memory."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    return np.asarray(vtk_to_numpy(array))


def read_array(path: Path) -> np.ndarray:
    """Read the array of a .npy file, without running code. RequestError: it cannot be read."""
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

"""VTK and NumPy as readers: what they say of a broken file is raised, and never printed."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from noether.common.errors import RequestError, one_line


class Unfit(ValueError):
    """A file is not as it must be, in noether's own words and not in those of a library that reads it."""


def import_pyvista() -> ModuleType:
    """Returns pyvista, which is imported only where meshes are read or written. RequestError: not installed."""
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

    vtkLogger.SetStderrVerbosity(vtkLogger.VERBOSITY_OFF)  # What VTK says of a file is raised, and not printed too.
    return pyvista


@contextmanager
def raising_what_vtk_says() -> Iterator[None]:
    """Raises a ValueError with what VTK says is wrong; it would print that, and return the part that it could read."""
    pyvista = import_pyvista()
    with pyvista.VtkErrorCatcher(send_to_logging=False) as caught:
        yield
    if said := [re.sub(r" *\(0x[0-9a-f]+\)", "", str(event.alert)) for event in caught.error_events]:
        # The pipeline says only that a reader failed, the reader why.
        raise ValueError(next((words for words in said if "returned failure for request" not in words), said[0]))


def output_of(reader: Any, time: float | None = None) -> Any:
    """Returns what a reader of pyvista makes of its file, at a time. Raises ValueError with what VTK says is wrong."""
    with raising_what_vtk_says():
        if time is None:
            reader.reader.Update()
        else:
            reader.reader.UpdateTimeStep(time)
    return import_pyvista().wrap(reader.reader.GetOutputDataObject(0))


def to_numpy(array: Any) -> np.ndarray:
    """Returns a VTK array as a NumPy array that shares its memory."""
    from vtkmodules.util.numpy_support import vtk_to_numpy

    return np.asarray(vtk_to_numpy(array))


def read_array(path: Path) -> np.ndarray:
    """Reads the array of a .npy file, without running code. RequestError: it cannot be read."""
    try:
        array = np.load(path, allow_pickle=False)
        if not isinstance(array, np.ndarray) or array.dtype.kind not in "fiub":
            raise ValueError(array.dtype if isinstance(array, np.ndarray) else "several arrays")
    # NumPy parses the header as Python: a broken one raises whatever its parser does.
    except (Exception, RecursionError, MemoryError) as error:
        raise RequestError(
            "mesh-parts-unreadable",
            f"{path} cannot be read",
            seen="a file of another kind" if "pickle" in str(error) else one_line(error),  # NumPy offers to run it.
            expected="one array of numbers, saved by numpy.save",
        ) from None
    return array

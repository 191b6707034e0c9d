"""Write whole arrays to a packed file, with the writer to which data sets pass one sample after another."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from noether.core.data.packed import Spec, packed_writer


def write_packed(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str] | None = None) -> None:
    """Write `arrays`, each of shape (samples, ...), to a packed file; raise the same errors as `packed_writer`."""
    specs = {key: Spec(array.dtype.newbyteorder("<"), array.shape) for key, array in arrays.items()}
    with packed_writer(path, specs, metadata or {}) as write:
        write(0, arrays)

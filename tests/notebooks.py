"""Run the code of a notebook of examples/, from its first cell to its last."""

import json
from pathlib import Path
from typing import Any

import matplotlib

EXAMPLES = Path(__file__).parents[1] / "examples"


def run_notebook(name: str) -> dict[str, Any]:
    """Run a notebook; return the objects that it defines, by name."""
    matplotlib.use("agg")
    names: dict[str, Any] = {}
    for cell in json.loads((EXAMPLES / name).read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), name, "exec"), names)
    return names

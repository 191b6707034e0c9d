"""Remove parts of the image's packages that the image cannot use; run by the Dockerfile.

    slim_packages.py SITE_PACKAGES

VTK's rendering modules need OpenGL or X11, which the image lacks: there they crash with a segmentation fault. They are
removed, with the libraries that no other module links to. Symbol tables, which only debuggers use, are stripped; the
dynamic symbols needed for linking stay. Needs readelf and strip (binutils).
"""

import re
import subprocess
import sys
from pathlib import Path

DRAWS = re.compile(
    r"vtk(Accelerators|Charts|Domains|Geovis|IOExport|IOFDS|IOImport|IOInfovis|ImagingOpenGL2|Infovis|Interaction"
    r"|PythonContext2D|Rendering|SerializationManager|Testing|Views|Web)"
)
"""Matches the names of VTK's modules for rendering, graphs, VTK-m and the web."""
STRIPPED = ("vtkmodules/*.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so")


def remove_drawing(packages: Path) -> None:
    """Remove VTK's rendering modules, and the libraries that no other VTK module needs."""
    folder = packages / "vtkmodules"
    libraries = {path.name: path for path in folder.glob("*.so")}
    kept: set[str] = set()
    waiting = [name for name in libraries if ".cpython" in name and not DRAWS.match(name)]
    while waiting:
        name = waiting.pop()
        if name in libraries and name not in kept:
            kept.add(name)
            waiting += needed_by(libraries[name])
    for name in libraries.keys() - kept:
        libraries[name].unlink()
    gone = {name.partition(".")[0] for name in libraries.keys() - kept}
    for everything in (packages / "vtk.py", folder / "all.py"):  # `import vtk` imports all modules by name.
        lines = everything.read_text().splitlines(keepends=True)
        everything.write_text("".join(line for line in lines if not gone & set(re.findall(r"\w+", line))))


def needed_by(library: Path) -> list[str]:
    """Return the names of the libraries that a library is linked with."""
    shown = subprocess.run(["readelf", "--dynamic", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", shown)


if __name__ == "__main__":
    packages = Path(sys.argv[1])
    remove_drawing(packages)
    for pattern in STRIPPED:
        for path in packages.glob(pattern):
            subprocess.run(["strip", "--strip-unneeded", path], check=True)

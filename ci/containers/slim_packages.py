"""Remove parts of the installed packages that the image cannot use; the Dockerfile runs this script.

    slim_packages.py SITE_PACKAGES

VTK's rendering modules need OpenGL or X11; without them, as in the image, they crash with a segmentation fault. These
modules are removed, with the libraries that no other module links to. Symbol tables, which only debuggers use, are
stripped; the dynamic symbols stay, because linking needs them. Needs readelf and strip (binutils).
"""

import re
import subprocess
import sys
from pathlib import Path

DRAWS = re.compile(
    r"vtk(Accelerators|Charts|Domains|Geovis|IOExport|IOFDS|IOImport|IOInfovis|ImagingOpenGL2|Infovis|Interaction"
    r"|PythonContext2D|Rendering|SerializationManager|Testing|Views|Web)"
)
"""A pattern for the names of VTK's modules for rendering, graphs, VTK-m and the web."""
STRIPPED = ("vtkmodules/*.so", "torch/lib/libtorch_cpu.so", "torch/lib/libtorch_python.so")


def remove_drawing(packages: Path) -> None:
    """Remove VTK's rendering modules, and the libraries that none of the remaining modules needs."""
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
    """Return the names of the libraries to which a library is linked."""
    shown = subprocess.run(["readelf", "--dynamic", library], check=True, capture_output=True, text=True).stdout
    return re.findall(r"\(NEEDED\).*\[(.+)\]", shown)


if __name__ == "__main__":
    packages = Path(sys.argv[1])
    remove_drawing(packages)
    for pattern in STRIPPED:
        for path in packages.glob(pattern):
            subprocess.run(["strip", "--strip-unneeded", path], check=True)

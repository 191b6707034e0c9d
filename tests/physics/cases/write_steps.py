"""Write a mesh that changes over the given times, with VTK's writers: write_steps.py FILE.exo|FILE.vtkhdf TIME…"""

import sys

import numpy as np
import pyvista
from vtkmodules.util.vtkAlgorithm import VTKPythonAlgorithmBase
from vtkmodules.vtkCommonDataModel import vtkUnstructuredGrid
from vtkmodules.vtkCommonExecutionModel import vtkStreamingDemandDrivenPipeline as Pipeline
from vtkmodules.vtkIOExodus import vtkExodusIIWriter
from vtkmodules.vtkIOHDF import vtkHDFWriter


def block(time: float) -> pyvista.UnstructuredGrid:
    """Return hexahedra with the temperature 300 + time and a constant displacement."""
    mesh = pyvista.ImageData(dimensions=(5, 4, 3)).cast_to_unstructured_grid()
    mesh.point_data["T"] = np.full(mesh.n_points, 300 + time)
    mesh.point_data["DISPL"] = np.full((mesh.n_points, 3), 5.0)
    return mesh


class Changing(VTKPythonAlgorithmBase):
    """A VTK source that gives a writer the mesh at every time."""

    def __init__(self, times: list[float]) -> None:
        super().__init__(nInputPorts=0, nOutputPorts=1, outputType="vtkUnstructuredGrid")
        self.times = times

    def RequestInformation(self, request, inputs, outputs) -> int:
        outputs.GetInformationObject(0).Set(Pipeline.TIME_STEPS(), self.times, len(self.times))
        outputs.GetInformationObject(0).Set(Pipeline.TIME_RANGE(), (self.times[0], self.times[-1]), 2)
        return 1

    def RequestData(self, request, inputs, outputs) -> int:
        about = outputs.GetInformationObject(0)
        time = about.Get(Pipeline.UPDATE_TIME_STEP()) if about.Has(Pipeline.UPDATE_TIME_STEP()) else self.times[0]
        mesh = vtkUnstructuredGrid.GetData(outputs)
        mesh.ShallowCopy(block(time))
        mesh.GetInformation().Set(mesh.DATA_TIME_STEP(), time)
        return 1


def main() -> None:
    path, *times = sys.argv[1:]
    source = Changing([float(time) for time in times])
    writer = vtkExodusIIWriter() if path.endswith(".exo") else vtkHDFWriter()
    writer.SetInputConnection(source.GetOutputPort())
    writer.SetFileName(path)
    writer.SetWriteAllTimeSteps(True)
    writer.Write()


if __name__ == "__main__":
    main()

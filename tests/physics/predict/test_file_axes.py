"""A shape in the axes and the unit of the files of training is turned to the model's, and what is predicted back."""

from pathlib import Path

import numpy as np
import pytest

import noether
from noether.core.tasks.angles import as_pair
from noether.physics.cases.case_map import AxesMap
from noether.physics.cases.dataset import CasesDataset
from noether.physics.predict.shape_input import FileAxes

SMALL_RUN = Path(__file__).with_name("small_runs") / "upt"
ROTATION = AxesMap(wind="-y", up="+z").rotation()
FILES = {"rotation": ROTATION.tolist(), "metres": 0.001, "words": "wind -y, up +z"}


def test_fields_come_back_in_the_axes_of_the_shape() -> None:
    files = FileAxes.of({"files": FILES}, "files", {"phase": (0.0, 360.0)})
    rng = np.random.default_rng(0)
    vectors, tensors = rng.normal(size=(5, 3)), rng.normal(size=(5, 9))
    np.testing.assert_allclose(files.points(np.array([[0, -1.0, 0]])), [[0, 0, 1]], atol=1e-12)
    angles = np.array([0.0, 1.0, 179.0, 181.0, 359.0])
    given = {"phase": 0.7 * as_pair(angles, (-180, 180)), "v": files.points(vectors), "p": vectors[:, 0], "t": tensors}
    back = files.back({**given, "force": ROTATION @ vectors[0]})
    np.testing.assert_allclose(back["v"], vectors)
    np.testing.assert_allclose(back["p"], vectors[:, 0])
    np.testing.assert_allclose(back["phase"], angles, atol=1e-9)
    np.testing.assert_allclose(back["force"], vectors[0])
    np.testing.assert_allclose(back["t"].reshape(5, 3, 3), ROTATION.T @ tensors.reshape(5, 3, 3) @ ROTATION, atol=1e-12)


@pytest.mark.parametrize(
    ("space", "axes"), [({}, "files"), ({"files": FILES}, "model")], ids=["nothing-said", "asked-for-the-model's"]
)
def test_without_them_nothing_is_turned(space, axes) -> None:
    own = FileAxes.of(space, axes, {})
    assert (own.metres, own.words) == (1.0, "")
    np.testing.assert_array_equal(own.rotation, np.eye(3))


def test_a_prediction_in_the_files_axes_is_that_in_the_models() -> None:
    run = noether.load_run(SMALL_RUN)
    rng = np.random.default_rng(0)
    points, air = rng.uniform([-0.8, 0, -2], [0.8, 1.2, 2], (64, 3)), rng.uniform([-1, 1.5, -3], [1, 3, 3], (50, 3))
    expected = run.predict(points, volume=air)
    run.trained.task.space["files"] = FILES
    found = run.predict(points @ ROTATION, volume=air @ ROTATION)
    np.testing.assert_allclose(found["surface_pressure"], expected["surface_pressure"], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(found["volume_velocity"], expected["volume_velocity"] @ ROTATION, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(found["points"], points @ ROTATION)
    again = run.predict(points, volume=air, axes="model")
    np.testing.assert_array_equal(again["volume_velocity"], expected["volume_velocity"])


def test_prepared_cases_say_what_their_files_were() -> None:
    rest = "sets: {s: {file: '{case}.vtp', kind: surface}}, outputs: {drag: {file: '{case}.csv', column: drag}}"
    for text, expected in (
        (f"{{axes: {{wind: -y, up: +z}}, length: mm, {rest}}}", FILES),
        (f"{{{rest}}}", None),
    ):
        metadata = {"map": text, "axes": None, "parameters": {}, "outputs": {}, "fields": {}, "sets": {},
                    "constants": {}}  # fmt: skip
        assert CasesDataset(Path(), [], metadata).about()["space"].get("files") == expected

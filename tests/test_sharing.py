"""How the workers of `make test` share the tests."""

import pytest
from conftest import REPOSITORY
from sharing import EVERYWHERE, MACHINES


@pytest.mark.parametrize("beginning", [*MACHINES, *EVERYWHERE])
def test_every_beginning_is_of_tests_that_exist(beginning: str) -> None:
    path, _, function = beginning.partition("[")[0].partition("::")
    assert (REPOSITORY / path).exists()
    assert not function or f"def {function}" in (REPOSITORY / path).read_text()

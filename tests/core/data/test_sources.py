"""Every data set that a configuration can name has a line in the one table that says how it is had."""

import pytest

from noether.config import dataset as sections
from noether.config import model
from noether.config.compose import load_config
from noether.core.data.build import OWN_DATA, SOURCES, data_source
from noether.core.models import build as models


def test_the_table_has_the_kinds_of_the_configuration():
    assert set(SOURCES) == set(sections.KNOWN)
    assert set(models.REGISTRY) == set(model.KNOWN)


@pytest.mark.parametrize("kind", sections.KNOWN)
def test_each_kind_has_a_yaml_and_its_own_source(kind):
    config = load_config([f"dataset={kind}", *(["+experiment/mnist=convnet"] if kind == "mnist" else [])])
    assert config.dataset.kind == kind
    assert data_source(config) is SOURCES[kind]


def test_a_dotted_path_is_the_users_own():
    config = load_config(["dataset.kind=my_package.Cars"])
    assert data_source(config) is OWN_DATA

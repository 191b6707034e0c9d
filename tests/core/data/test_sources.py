"""Every built-in component has a line in the registry and a YAML file, and its dotted path exists."""

from pathlib import Path

import pytest

import noether
from noether.common.dotted_path import load_object
from noether.config.compose import load_config
from noether.config.groups import configs_folder
from noether.core.data.build import OWN_DATA, DataSource, data_source
from noether.registry import HOOKS, KINDS, code_of, hook, settings_of


@pytest.mark.parametrize(("section", "kind"), [(section, kind) for section, kinds in KINDS.items() for kind in kinds])
def test_each_kind_has_settings_code_and_a_yaml(section, kind):
    assert settings_of(section)[kind].model_fields["kind"].default == kind
    assert callable(code := load_object(kind, f"{section}.kind", code_of(section))) or isinstance(code, DataSource)
    assert section == "task" or (configs_folder() / section / f"{kind}.yaml").is_file()


@pytest.mark.parametrize("name", HOOKS)
def test_what_physics_does_for_the_rest_is_there(name):
    assert callable(hook(name))


@pytest.mark.parametrize("kind", KINDS["dataset"])
def test_each_kind_has_its_own_source(kind):
    config = load_config([f"dataset={kind}", *(["+experiment/mnist=convnet"] if kind == "mnist" else [])])
    assert data_source(config) is load_object(kind, "dataset.kind", code_of("dataset"))


def test_a_dotted_path_is_the_users_own():
    config = load_config(["dataset.kind=my_package.Cars"])
    assert data_source(config) is OWN_DATA


def test_nothing_but_the_registry_and_the_commands_names_physics():
    """import-linter checks only import statements, so this test checks the names of modules in strings."""
    package = Path(noether.__file__).parent
    outside = [path for path in package.rglob("*.py") if path.relative_to(package).parts[0] not in ("physics", "cli")]
    named = {str(path.relative_to(package)) for path in outside if "noether.physics" in path.read_text()}
    assert named == {"__init__.py", "registry.py"}

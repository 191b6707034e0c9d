"""A setting cannot leave the line of the script or the row that it is written into."""

import pytest

from noether.common.errors import RequestError
from noether.config.compose import validate
from noether.config.schema import refuse_control_characters
from tests.refusal import refusal

BAD = ["x\ntouch P #", "x\rtouch P", "x\x85y", "x\u2028y", "x\u2029y", "x\x1b[2Jy", "x\x00y", "x\ty"]
SETTINGS = [
    "run_id",
    "output_path",
    "resume",
    "master_addr",
    "slurm.folder",
    "slurm.slurm_partition",
    "slurm.slurm_account",
    "slurm.slurm_constraint",
    "slurm.slurm_qos",
    "slurm.nodelist",
    "slurm.container",
]


@pytest.mark.parametrize("value", BAD, ids=repr)
@pytest.mark.parametrize("name", SETTINGS)
def test_what_ends_a_line_is_refused(name: str, value: str) -> None:
    section, _, key = name.rpartition(".")
    settings = {section: {key: value}} if section else {key: value}
    with refusal("unprintable-character") as refused:
        refuse_control_characters(settings)
    assert refused.value.seen.startswith(f"{name}=")
    assert refused.value.fix == f"{name}={''.join(letter for letter in value if letter.isprintable())}"


@pytest.mark.parametrize(
    "settings",
    [
        {"slurm": {"container_mounts": ["/data\n#"]}},
        {"slurm": {"slurm_additional_parameters": {"comment": "a\nb"}}},
        {"slurm": {"slurm_additional_parameters": {"a\nb": "c"}}},
        {"tracker": {"project": "a\u2028b"}},
    ],
    ids=str,
)
def test_lists_and_names_are_looked_at_as_well(settings: dict) -> None:
    with refusal("unprintable-character"):
        refuse_control_characters(settings)


def test_shell_lines_and_options_of_components_are_free() -> None:
    refuse_control_characters({"slurm": {"slurm_setup": ["if true; then\n\techo\nfi"]}, "model": {"text": "a\nb"}})


def test_the_fix_works_when_it_is_applied(tmp_path) -> None:
    with pytest.raises(RequestError) as refused:
        validate({"output_path": f"{tmp_path}\u2028runs"})
    name, _, value = refused.value.fix.partition("=")
    with pytest.raises(RequestError) as other:
        validate({name: value})
    assert "cannot be printed" not in str(other.value), "other settings are missing here"

"""A setting with control characters stays within its line of a script and its row of a table."""

import pytest

from noether.config.schema import refuse_control_characters
from tests.refusal import refusal

BAD = ["x\ntouch P #", "x\rtouch P", "x\x85y", "x\u2028y", "x\u2029y", "x\x1b[2Jy", "x\x00y", "x\ty"]
OF_SLURM = ("slurm.folder", "slurm.slurm_partition", "slurm.nodelist", "slurm.container")


@pytest.mark.parametrize("value", BAD, ids=repr)
@pytest.mark.parametrize("name", ["run_id", "output_path", "resume", *OF_SLURM])
def test_what_ends_a_line_is_refused(name: str, value: str) -> None:
    section, _, key = name.rpartition(".")
    settings = {section: {key: value}} if section else {key: value}
    with refusal("unprintable-character", seen=f"{name}=") as refused:
        refuse_control_characters(settings)
    assert refused.value.fix == f"{name}={''.join(letter for letter in value if letter.isprintable())}"


FURTHER = [
    {"slurm": {"container_mounts": ["/data\n#"]}},
    {"slurm": {"slurm_additional_parameters": {"a\nb": "c"}}},
    {"tracker": {"project": "a\u2028b"}},
]


@pytest.mark.parametrize("settings", FURTHER, ids=str)
def test_lists_and_names_are_looked_at_as_well(settings: dict) -> None:
    with refusal("unprintable-character"):
        refuse_control_characters(settings)


def test_shell_lines_and_options_of_components_are_free() -> None:
    refuse_control_characters({"slurm": {"slurm_setup": ["if true; then\n\techo\nfi"]}, "model": {"text": "a\nb"}})

"""What the workflows promise of each other, of the Makefile and of registries; and how workers share the tests."""

import re
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY
from sharing import EVERYWHERE, MACHINES

WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (REPOSITORY / ".github" / "workflows").glob("*.yml")
}


def awaited(jobs: dict[str, Any], name: str) -> set[str]:
    """Returns every job that one waits for."""
    needs = jobs[name].get("needs", [])
    direct = {needs} if isinstance(needs, str) else set(needs)
    return direct.union(*(awaited(jobs, each) for each in direct))


@pytest.mark.parametrize("name", [name for name in WORKFLOWS["release"]["jobs"] if name != "tests"])
def test_nothing_is_published_before_the_tests(name: str) -> None:
    jobs = WORKFLOWS["release"]["jobs"]
    assert jobs["tests"]["uses"] == "$/.github/workflows/cpu.yml"
    assert "tests" in awaited(jobs, name)


def test_an_owner_with_capitals_has_a_valid_image_name() -> None:
    for job in WORKFLOWS["release"]["jobs"].values():
        steps = [str(step) for step in job.get("steps", ())]
        uses = [number for number, step in enumerate(steps) if "$IMAGE" in step or "env.IMAGE" in step]
        sets = [number for number, step in enumerate(steps) if "${GITHUB_REPOSITORY,,}" in step]
        assert not uses or sets[0] < uses[0]
        assert not any("github.repository }}" in step for step in steps)


def test_the_nightly_parts_are_all_of_make_faults() -> None:
    makefile = (REPOSITORY / "Makefile").read_text()
    whole = {kind: int(count) for kind, count in re.findall(r"-m tests\.faults\.(\w+) --\w+ (\d+)", makefile)}
    seen: dict[str, int] = {}
    for part in WORKFLOWS["nightly"]["jobs"]["faults"]["strategy"]["matrix"]["part"]:
        kind, *words = part.split()
        asked = dict(zip(words[::2], map(int, words[1::2]), strict=True))
        assert asked.pop("--first", seen.get(kind, 0)) == seen.get(kind, 0), "each case once"
        seen[kind] = seen.get(kind, 0) + sum(asked.values())
    assert seen == whole


@pytest.mark.parametrize("beginning", [*MACHINES, *EVERYWHERE])
def test_every_beginning_is_of_tests_that_exist(beginning: str) -> None:
    path, _, function = beginning.partition("[")[0].partition("::")
    assert (REPOSITORY / path).exists()
    assert not function or f"def {function}" in (REPOSITORY / path).read_text()

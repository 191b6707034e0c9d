"""Each line of CONTRIBUTING's "Where to add what" is enough: a copy of the house gets one of each, and it works."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import REPOSITORY


class House:
    """A copy of the package, in which a test adds what CONTRIBUTING says, and runs it."""

    def __init__(self, root: Path, environ: dict[str, str]) -> None:
        self.root, self.environ = root, environ
        for folder in ("noether", "configs"):
            shutil.copytree(REPOSITORY / folder, root / folder, ignore=shutil.ignore_patterns("__pycache__"))

    def write(self, name: str, text: str) -> None:
        """Adds a file."""
        assert not (self.root / name).exists()
        (self.root / name).write_text(text)

    def change(self, name: str, before: str, after: str) -> None:
        """Replaces the one place where a line is to be added."""
        text = (self.root / name).read_text()
        assert text.count(before) == 1, f"{name}: {before!r} stands {text.count(before)} times"
        (self.root / name).write_text(text.replace(before, after))

    def run(self, *words: str, code: int = 0, **more: str) -> str:
        """Runs noether in the copy; returns what it printed."""
        environ = {**self.environ, "PYTHONPATH": str(self.root), **more}
        command = [sys.executable, "-m", "noether", *words]
        done = subprocess.run(command, cwd=self.root, env=environ, capture_output=True, text=True, timeout=170)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout


@pytest.fixture
def house(tmp_path: Path, environ: dict[str, str]) -> House:
    return House(tmp_path, environ)


def test_a_launcher(house: House) -> None:
    """A file beside local.py with one pure function, and a line in resolve.py."""
    house.write(
        "noether/environments/bus.py",
        "from dataclasses import replace\n\nfrom noether.environments.local import local_placement\n\n\n"
        "def bus_placement(request, here):\n"
        "    if 'BUS' not in here.environ:\n        return None\n"
        "    return replace(local_placement(request, here), launcher='bus')\n",
    )
    house.change(
        "noether/environments/resolve.py",
        "from noether.environments.devices",
        "from noether.environments.bus import bus_placement\nfrom noether.environments.devices",
    )
    house.change("noether/environments/resolve.py", "    torchrun_placement,\n    mpi", "    bus_placement,\n    mpi")
    assert json.loads(house.run("plan", "--json", "accelerator=cpu"))["launcher"] == "local"
    assert json.loads(house.run("plan", "--json", "accelerator=cpu", BUS="1"))["launcher"] == "bus"


def add_model(house: House) -> None:
    house.write(
        "noether/models/flat.py",
        "from torch import nn\n\n\nclass Flat(nn.Module):\n"
        "    def __init__(self, width=8):\n        super().__init__()\n"
        "        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(784, width), nn.ReLU(), nn.Linear(width, 10))\n\n"
        "    def forward(self, batch):\n        return {'logits': self.layers(batch['image'])}\n",
    )
    house.change("noether/models/build.py", "REGISTRY = {\n", 'REGISTRY = {\n    "flat": "noether.models.flat.Flat",\n')
    house.change("noether/config/model.py", 'KNOWN = ("mlp"', 'KNOWN = ("flat", "mlp"')
    house.change(
        "noether/config/model.py",
        "ModelConfig = Annotated[\n    ",
        "class FlatConfig(ComponentSection):\n    problem = 'classes'\n    kind: Literal['flat'] = 'flat'\n"
        "    width: int = Field(8, gt=0, description='Hidden width.')\n\n\n"
        "ModelConfig = Annotated[\n    Annotated[FlatConfig, Tag('flat')]\n    | ",
    )
    house.write("configs/model/flat.yaml", "kind: flat\n")


DIGITS = ("dataset=mnist", "task=classification", "model=flat", "trainer.max_updates=2", "accelerator=cpu")


@pytest.mark.slow
def test_a_model(house: House) -> None:
    """A file in models/, a line in REGISTRY, a section in config/model.py, a YAML."""
    add_model(house)
    told = house.run("train", "--dry-run", *DIGITS, "model.width=16", f"output_path={house.root}")
    assert "Flat, 12,730 parameters" in told


@pytest.mark.slow
def test_a_data_set_and_a_task(house: House) -> None:
    """Functions and their line in SOURCES, a line in REGISTRY, a section each, a YAML each."""
    add_model(house)
    house.write(
        "noether/data/noise.py",
        "class Noise:\n    def __init__(self, size):\n        self.size = size\n\n"
        "    def __len__(self):\n        return self.size\n\n"
        "    def __getitem__(self, index):\n        import torch\n\n"
        "        draw = torch.Generator().manual_seed(index)\n"
        "        return {'image': torch.rand(1, 28, 28, generator=draw), 'label': torch.tensor(index % 10)}\n",
    )
    house.change(
        "noether/data/build.py",
        "SOURCES: Mapping[str, DataSource] = {\n",
        "def _open_noise(dataset, folder):\n    from noether.data.noise import Noise\n\n"
        "    return Splits(Noise(dataset.size), Noise(10))\n\n\n"
        "def _check_noise(dataset, root):\n    pass\n\n\n"
        "SOURCES: Mapping[str, DataSource] = {\n"
        "    'noise': DataSource(_check_noise, _open_noise, without_root='noise'),\n",
    )
    house.change("noether/config/dataset.py", 'KNOWN = ("ellipsoid"', 'KNOWN = ("noise", "ellipsoid"')
    house.change(
        "noether/config/dataset.py",
        "DatasetConfig = Annotated[\n    ",
        "class NoiseConfig(_Dataset):\n    problem = 'classes'\n    kind: Literal['noise'] = 'noise'\n"
        "    size: int = Field(40, gt=1, description='Samples.')\n\n\n"
        "DatasetConfig = Annotated[\n    Annotated[NoiseConfig, Tag('noise')]\n    | ",
    )
    house.write("configs/dataset/noise.yaml", "kind: noise\n")
    house.write(
        "noether/tasks/sharp.py",
        "from noether.tasks.classification import ClassificationTask\n\n\n"
        "class SharpTask(ClassificationTask):\n    pass\n",
    )
    house.change(
        "noether/tasks/build.py", "REGISTRY = {\n", 'REGISTRY = {\n    "sharp": "noether.tasks.sharp.SharpTask",\n'
    )
    text = (house.root / "noether/config/task.py").read_text()
    text = text.replace('"fields", "classification")', '"fields", "classification", "sharp")')
    text = text.replace(
        "TaskConfig = Annotated[\n    ",
        "class SharpConfig(ClassificationTaskConfig):\n    kind: Literal['sharp'] = 'sharp'\n\n\n"
        "TaskConfig = Annotated[\n    Annotated[SharpConfig, Tag('sharp')]\n    | ",
    )
    (house.root / "noether/config/task.py").write_text(text)
    house.write("configs/task/sharp.yaml", "kind: sharp\n")
    words = ("dataset=noise", "task=sharp", "model=flat", "trainer.max_updates=2", "accelerator=cpu")
    assert "10 test samples" in house.run("train", "--dry-run", *words, f"output_path={house.root}")


@pytest.mark.slow
def test_a_check_of_the_doctor(house: House) -> None:
    """A function of facts, and its place in the list of checks."""
    with (house.root / "noether/doctor/machine_checks.py").open("a") as file:
        file.write(
            '\n\ndef check_moon(facts: HostFacts) -> Diagnosis:\n    return Diagnosis("moon", "ok", facts.host)\n'
        )
    house.change("noether/doctor/participant.py", "    check_container,\n", "    check_container,\n    check_moon,\n")
    house.change("noether/doctor/participant.py", "        check_container(facts),\n", "        check_moon(facts),\n")
    words = ("doctor", "--json", "accelerator=cpu", f"output_path={house.root}")
    done = subprocess.run(
        [sys.executable, "-m", "noether", *words],
        cwd=house.root,
        env={**house.environ, "PYTHONPATH": str(house.root)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    found = {finding["check"]: finding["level"] for finding in json.loads(done.stdout)["findings"]}
    assert found["moon"] == "ok"


def test_a_lint_rule(house: House) -> None:
    """A line in rules.py, and its check in the file of its subject."""
    house.change(
        "noether/lint/rules.py",
        "RULES: tuple[Rule, ...] = (",
        'RULES: tuple[Rule, ...] = (\n    Rule("NTH999", "no-moon", "warning", "Nobody asks for the moon."),',
    )
    with (house.root / "noether/lint/ending_rules.py").open("a") as file:
        file.write(
            "\n\ndef moon(job: Job) -> Iterator[Finding]:\n"
            '    if "moon" in job.script.text:\n        yield Finding(1, "no-moon", "the moon", "the sun")\n'
        )
    house.change("noether/lint/check.py", "ending_rules.conda,", "ending_rules.conda, ending_rules.moon,")
    house.write("job.sbatch", "#!/bin/bash\n#SBATCH --ntasks=1\n#SBATCH --job-name=moon\nsrun -K hostname\n")
    assert "NTH999" in house.run("lint", "job.sbatch")


def test_a_command_and_a_setting(house: House) -> None:
    """A function of a subject's commands is a command by a line of VERBS; a field with a description is a setting."""
    house.change(
        "noether/cli/run_commands.py",
        "def cancel(",
        'def moon(*, phase: str = "full") -> int:\n    """Say how the moon is.\n\n'
        '    Args:\n        phase: which one\n    """\n    print(f"the moon is {phase}")\n'
        "    return 0\n\n\ndef cancel(",
    )
    house.change(
        "noether/cli/commands.py",
        '    "cancel": run_commands.cancel,',
        '    "moon": run_commands.moon,\n    "cancel": run_commands.cancel,',
    )
    assert "Say how the moon is." in house.run("--help")
    assert house.run("moon", "--phase", "new") == "the moon is new\n"
    config = (house.root / "noether/config/tracker.py").read_text()
    added = config.replace("    report: bool", '    moon: int = Field(3, description="Moons.")\n    report: bool', 1)
    (house.root / "noether/config/tracker.py").write_text(added)
    assert json.loads(house.run("plan", "--json", "accelerator=cpu", "tracker.moon=4"))["world_size"] == 1
    house.run("plan", "tracker.moon=much", code=2)

"""Runs and exports that an attacker forged: their settings name code to import, and pipes and links replace files."""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import yaml

from noether.checkpoints.format import META, _meta_digest
from noether.checkpoints.run_settings import WantedModel, choose_model
from noether.checkpoints.table import describe_checkpoints
from noether.config.compose import validate
from noether.physics.export.exported_model import load_exported
from noether.physics.predict.inference import load_trained
from noether.runs.folder import RunFolder
from noether.runs.logs import log_files
from noether.runs.overview import run_state
from noether.runs.report.run import read_run
from noether.runs.trust import mark_own

from .fuzz_subjects import Subject, mutate

TESTS = Path(__file__).resolve().parents[1]
RUN = TESTS / "physics" / "predict" / "small_runs" / "upt"
EXPORT = TESTS / "checkpoints" / "released" / "0.1.0" / "export"
EVIL = "evil_module_of_a_stranger"
KINDS = (
    *(f"{EVIL}.Model", "slurm_lint.finding.run", "noether.common.dotted_path.load_object"),
    *("noether.common.dotted_path.importlib.import_module", "noether.physics.models.upt.UPT", "os.system"),
    *("${run_id}", "${oc.env:HOME}", f"{EVIL}.Model ", f" {EVIL}.Model", f".{EVIL}.Model", f"upt.{EVIL}"),
)
OPTIONS = ({}, {"path": f"{EVIL}.Model", "setting": "x"}, {"name": EVIL}, {"args": ["touch", EVIL]}, {"command": EVIL})
WAYS: tuple[Callable[[Path], object], ...] = (
    os.mkfifo,
    lambda path: path.symlink_to("/dev/zero"),
    lambda path: path.symlink_to("nowhere"),
    lambda path: path.symlink_to("/etc/passwd"),
    Path.mkdir,
)
NAMES = (
    *("config.yaml", "plan.json", "environment.json", "metrics.jsonl", "result.json", "attempt.json", "attempts.jsonl"),
    *("stopped.json", "job.json", "started-by.json", "evaluation/test.npz", "logs/rank-0.log"),
    *(f"checkpoints/update-000000002/{name}" for name in (META, "model.safetensors", "task.json")),
)


class ForgedRun(Subject):
    """A forged run or export, to be read without importing any of the code that its settings name."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        os.environ["XDG_STATE_HOME"] = str(folder / "state")
        sys.path.insert(0, str(folder))
        (folder / f"{EVIL}.py").write_text("class Model: pass\n")
        # Create this user's key, without a signature for the settings that `run` forges.
        mark_own(RunFolder(folder), validate({**self._settings(), "model": {"kind": "a.b"}}))

    @staticmethod
    def _settings() -> dict[str, Any]:
        return dict(yaml.safe_load((RUN / "config.yaml").read_text()))

    def run(self, rng: random.Random) -> None:
        try:
            with redirect_stderr(StringIO()):  # Discards the list of differences, which is printed on stderr.
                self._read(rng)
        finally:
            assert EVIL not in sys.modules, "code of the forged settings was imported"

    def _read(self, rng: random.Random) -> None:
        if rng.random() < 0.2:
            self._read_export(rng)
            return
        folder = RunFolder(self.folder / "run")
        shutil.rmtree(folder.path, ignore_errors=True)
        shutil.copytree(RUN, folder.path)
        settings = self._settings()
        settings[rng.choice(("model", "task", "dataset", "optimizer"))] = {
            "kind": rng.choice(KINDS),
            **rng.choice(OPTIONS),
        }
        settings["run_id"] = rng.choice(("upt", f"{EVIL}.Model"))
        if rng.random() < 0.2:
            settings["tracker"] = {"services": [rng.choice(KINDS)]}
        if rng.random() < 0.2:
            settings["defaults"] = [EVIL, "_self_"]
        content = yaml.safe_dump(settings).encode()
        folder.config.write_bytes(mutate(content, rng) if rng.random() < 0.3 else content)
        if rng.random() < 0.5:
            at = folder.checkpoints / "update-000000002" / META
            meta = {**json.loads(at.read_text()), "config": settings}
            at.write_text(json.dumps({**meta, "meta_sha256": _meta_digest(meta)}))
        for name in rng.sample(NAMES, rng.choice((0, 0, 1, 3))):
            path = folder.path / name
            path.parent.mkdir(exist_ok=True)
            path.unlink(missing_ok=True)
            rng.choice(WAYS)(path)
        run_state(folder, {})
        read_run(folder)
        log_files(folder, None)
        describe_checkpoints(folder, verify=True)
        import torch

        load_trained(choose_model(WantedModel(str(folder.path), None, None, trust=False)), torch.device("cpu"))

    def _read_export(self, rng: random.Random) -> None:
        out = self.folder / "export"
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(EXPORT, out)
        about = json.loads((out / "model.json").read_text())
        about[rng.choice(("model", "task"))] |= {"kind": rng.choice(KINDS), "options": rng.choice(OPTIONS)}
        (out / "model.json").write_text(json.dumps(about))
        load_exported(out, program=rng.choice((None, True, False)))

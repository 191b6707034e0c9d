"""The readers to fuzz: each with the original files to mutate, and the call that reads the mutated file."""

import gzip
import io
import json
import random
import tarfile
import zipfile
from pathlib import Path

import numpy as np

PIECES = (
    *(b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\x80", b"null", b"[]", b"{}", b"-1", b"1e999", b"NaN"),
    *(b'"', b"\\ud800", b"9" * 20, b"true", b": ", b"- ", b"&a ", b"*a", b"!!python/object:os.system", b"\t"),
    *(b"2024-99-99", b"0x", b"<<: ", b"{", b"[", b"%", b"\xef\xbb\xbf", b"0" * 5000),
)


def mutate(content: bytes, rng: random.Random) -> bytes:
    """Return the content with some bytes changed, removed, repeated or inserted."""
    changed = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randint(0, len(changed))
        match rng.randrange(6):
            case 0 if at < len(changed):
                changed[at] ^= 1 << rng.randrange(8)
            case 1 if at < len(changed):
                changed[at] = rng.randrange(256)
            case 2:
                del changed[at : at + rng.choice((1, 2, 4, 100))]
            case 3:
                changed[at:at] = rng.choice(PIECES)
            case 4:
                piece = rng.choice(PIECES)
                changed[at : at + len(piece)] = piece
            case 5:
                changed[at:at] = changed[at : at + rng.choice((1, 8, 64))] * rng.choice((1, 2, 50))
    return bytes(changed)


class Subject:
    """A reader to fuzz: `run` mutates one of the original files and reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "file"

    def run(self, rng: random.Random) -> None:
        raise NotImplementedError


class Idx(Subject):
    """A file in MNIST's format: plain, or gzipped and mutated before or after compression."""

    def run(self, rng: random.Random) -> None:
        from noether.core.data.digits import read_idx

        images = b"\0\0\x08\x03" + b"".join(n.to_bytes(4, "big") for n in (2, 28, 28)) + bytes(2 * 28 * 28)
        how = rng.randrange(3)
        content = mutate(images, rng) if how < 2 else images
        if how:
            content = gzip.compress(content, 1)
        self.path.write_bytes(mutate(content, rng) if how == 2 else content)
        read_idx(self.path)


class Yaml(Subject):
    """The files in configs/, a few of them with deeply nested content appended."""

    def __init__(self, folder: Path) -> None:
        from noether.config.groups import configs_folder

        super().__init__(folder)
        self.seeds = [path.read_bytes() for path in sorted(configs_folder().rglob("*.yaml"))]

    def run(self, rng: random.Random) -> None:
        from noether.config.layers import read_settings

        content = rng.choice(self.seeds)
        if rng.random() < 0.01:
            content += b"x: " + rng.choice((b"[", b"{a: ", b"- ")) * rng.choice((10, 500, 3000))
        self.path.write_bytes(mutate(content, rng))
        read_settings(self.path)


class Packed(Subject):
    """A packed split of the built-in cars, mutated in its header or anywhere."""

    def __init__(self, folder: Path) -> None:
        from safetensors.numpy import save_file

        from noether.physics.cars.ellipsoid import sample_shapes

        super().__init__(folder)
        shapes = sample_shapes(4, 3)
        save_file({key: np.ones((2, *shape), np.float32) for key, shape in shapes.items()}, self.path, {"seed": "1"})
        self.seeds = [self.path.read_bytes()]

    def run(self, rng: random.Random) -> None:
        from noether.physics.cars.ellipsoid import open_split

        content = rng.choice(self.seeds)
        length = int.from_bytes(content[:8], "little")
        if rng.random() < 0.7:  # Mutate only the header, and write its new length.
            header = mutate(content[8 : 8 + length], rng)
            content = len(header).to_bytes(8, "little") + header + content[8 + length :]
        else:
            content = mutate(content, rng)
        self.path.write_bytes(content)
        open_split(self.path)


class Records(Subject):
    """The records of a run folder, which must be read without an error, however they are mutated."""

    ROWS = (
        {"time": 1.5, "kind": "training", "update": 2, "epoch": 0.5, "samples": 8, "loss": 1.9, "device_use": 0.4},
        {"time": 2.5, "kind": "training", "update": 4, "epoch": 1.0, "samples": 16, "loss": 1.2, "device_use": 0.4},
        {"time": 3.5, "kind": "evaluation", "update": 4, "split": "train", "selected": True, "metrics": {"loss": 1.1}},
    )

    def __init__(self, folder: Path) -> None:
        from noether.runs.folder import RunFolder
        from noether.runs.lease import take_lease
        from noether.runs.records import rows_text, write_record

        super().__init__(folder)
        self.run_folder = RunFolder(folder / "run")
        self.run_folder.path.mkdir()
        take_lease(self.run_folder, {})
        write_record(self.run_folder.result, {"metrics": {"loss": 1.0}, "split": "test", "scalars": {"lift": {}}})
        write_record(self.run_folder.plan, {"length": {"total_updates": 8}})
        write_record(self.run_folder.stopped, {"reason": "SIGTERM", "update": 4})
        write_record(self.run_folder.job, {"job": "12", "output": "/tmp/x"})
        self.run_folder.metrics.write_text(rows_text(self.ROWS))
        # Each file also has a variant without digests, in which every mutation takes effect.
        self.files = sorted(path for path in self.run_folder.path.iterdir() if path.is_file())
        self.seeds = {path: (path.read_bytes(), self._plain(path)) for path in self.files}

    def _plain(self, path: Path) -> bytes:
        rows = [json.loads(line) for line in path.read_text().splitlines()] if path.suffix == ".jsonl" else []
        for row in rows or [content := json.loads(path.read_text())]:
            row.pop("sha256", None)
            row.pop("crc32", None)
        return "".join(json.dumps(row) + "\n" for row in rows).encode() if rows else json.dumps(content).encode()

    def run(self, rng: random.Random) -> None:
        from noether.runs.lease import read_attempt, read_attempts
        from noether.runs.overview import run_state, status_table
        from noether.runs.records import read_record
        from noether.runs.report.tables import unbeaten_baselines
        from noether.training.evaluation import mean_pace

        path = rng.choice(self.files)
        path.write_bytes(mutate(rng.choice(self.seeds[path]), rng))
        try:
            read_attempts(self.run_folder)
            mean_pace(self.run_folder)
            unbeaten_baselines(read_record(self.run_folder.result))
            holder = read_attempt(self.run_folder)
            if holder is not None:
                holder.describe()
            status_table([run_state(self.run_folder, {})])
        finally:
            path.write_bytes(self.seeds[path][0])


class Checkpoints(Subject):
    """Checkpoints with mutated content and matching digests, read as when a run resumes."""

    def __init__(self, folder: Path) -> None:
        import torch
        from torch import nn

        from noether.checkpoints import state as states
        from noether.checkpoints.format import write_checkpoint
        from noether.checkpoints.writer import safetensors_parts
        from noether.config.optimizer import AdamWConfig
        from noether.physics.fields.fields import FieldsTask
        from noether.training.optimizers import build_optimizer
        from tests.learned import one_rank
        from tests.saved import META

        super().__init__(folder)
        self.group = one_rank()
        model = nn.Linear(2, 2)
        optimizer = build_optimizer(AdamWConfig(), model)  # The project's own optimizer, which declares its state.
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        task = FieldsTask({"p": {"points": "surface_points"}}, -4.5, 10.5)
        points = {"p": torch.arange(3.0), "surface_points": torch.arange(9.0).reshape(3, 3) / 9}
        task.examine(points, {})
        task.fit([points])
        ema, scaler = states.EmaWeights(model, 0.9), torch.amp.GradScaler("cpu")
        state = states.TrainingState(model, ema, optimizer, scaler, task, states.Progress(updates=4))
        numbers = {f"rank0/{key}": value for key, value in states.random_state(torch.device("cpu")).items()}
        tensors = states.saved_tensors(state) | {"random.safetensors": numbers}
        contents = {name: b"".join(map(bytes, safetensors_parts(own))) for name, own in tensors.items()}
        contents |= {name: text.encode() for name, text in states.saved_texts(state).items()}
        self.state, self.contents = state, contents
        self.meta = {**META, "metric": 0.5, "config": {"seed": 0}}
        self.write = write_checkpoint

    def run(self, rng: random.Random) -> None:
        import torch

        from noether.checkpoints.format import META, _meta_digest
        from noether.checkpoints.resume import compare_configs
        from noether.checkpoints.state import load_checkpoint
        from noether.checkpoints.table import describe_checkpoints, render_checkpoints
        from noether.config.schema import RunConfig
        from noether.runs.folder import RunFolder

        name = rng.choice((*self.contents, META, META))
        contents = {key: mutate(value, rng) if key == name else value for key, value in self.contents.items()}
        files = {key: [content] for key, content in contents.items()}
        checkpoint = self.write(self.folder / "checkpoints", 4, files, self.meta)
        if name == META:
            text = mutate((checkpoint.path / META).read_bytes(), rng)
            try:
                meta = json.loads(text)
                meta["meta_sha256"] = _meta_digest(meta)
                text = json.dumps(meta).encode()
            except (ValueError, TypeError, RecursionError):
                pass
            (checkpoint.path / META).write_bytes(text)
        render_checkpoints(describe_checkpoints(RunFolder(self.folder), verify=True))
        load_checkpoint(self.state, self.group, checkpoint, 0)
        compare_configs(checkpoint.meta().get("config", {}), RunConfig.model_construct())
        self.state.optimizer.step()
        self.state.task.prepare({"p": torch.ones(1, 3, 1), "surface_points": torch.ones(1, 3, 3)})


class Archives(Subject):
    """Archives of cases: zip, zip in a zip, tar, and tar.gz."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        files = {f"training_data/param0/a/{name}": b"x" * 300 for name in ("quadpress_smpl.vtk", "press.npy")}
        inner, outer, tar = io.BytesIO(), io.BytesIO(), io.BytesIO()
        for target, compression in ((inner, zipfile.ZIP_DEFLATED), (outer, zipfile.ZIP_STORED)):
            with zipfile.ZipFile(target, "w", compression) as archive:
                for name, content in files.items():
                    archive.writestr(name, content)
                if target is outer:
                    archive.writestr("training_data/param1.zip", inner.getvalue())
        with tarfile.open(fileobj=tar, mode="w") as archive_of_tar:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                archive_of_tar.addfile(entry, io.BytesIO(content))
        self.seeds = [inner.getvalue(), outer.getvalue(), tar.getvalue(), gzip.compress(tar.getvalue(), 1)]

    def run(self, rng: random.Random) -> None:
        from noether.physics.cases.commands import unpacked

        self.path.write_bytes(mutate(rng.choice(self.seeds), rng))
        with unpacked(self.path, self.path.parent / "unpacked"):
            pass


SUBJECTS: dict[str, type[Subject]] = {
    "idx": Idx,
    "yaml": Yaml,
    "packed": Packed,
    "records": Records,
    "checkpoints": Checkpoints,
    "archives": Archives,
}

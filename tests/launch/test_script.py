"""`noether run` sets torchrun's variables for a script, runs it as `__main__`, and ends with its exit code."""

import json
import signal
import subprocess
import sys
import time
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest
from conftest import REPOSITORY
from processes import AS_ROOT, find_program, lay, torchrun

from noether.cli.binding import bind
from noether.launch.detect.driver import Gpu
from noether.launch.detect.placement import LaunchRequest
from noether.launch.detect.process_facts import NOTHING_KNOWN
from noether.launch.detect.resolve import resolve_placement
from noether.launch.processes.context import RunInfo
from noether.launch.script import OwnScript, mask_of, rank_variables
from tests.launch.detect.placing import step
from tests.refusal import refusal

CPU = ["run", "--accelerator", "cpu", "--devices"]
# A script whose data set, checkpoint and worker processes need objects that `__main__` defines.
WHOLE = """
import atexit, dataclasses, io, json, multiprocessing, os, pickle, sys, typing, weakref
import numpy, torch, torch.distributed as dist

NAMES = ("RANK", "LOCAL_", "WORLD_", "NODE_", "GROUP_", "ROLE_", "TORCHELASTIC_", "OMP_")

@dataclasses.dataclass
class Config:
    rate: "float" = 0.1
    more: "Config | None" = None

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 2
    def __getitem__(self, place):
        return Config().rate, int(os.environ["RANK"])

def child(number, queue):
    queue.put([number, Config().rate])

def main():
    said = {name: value for name, value in os.environ.items() if name.startswith(NAMES)}
    said |= {"argv": sys.argv, "words": open("words.txt").read(), "stdin": sys.stdin.read()}
    saved = io.BytesIO()
    torch.save([Config()], saved)
    saved.seek(0)
    loaded = torch.load(saved, weights_only=False)
    said["saved"] = [type(loaded[0]) is Config, pickle.loads(pickle.dumps(Config())).rate]
    said["hint"] = str(typing.get_type_hints(Config)["more"])
    said["process"] = [multiprocessing.current_process().name, str(multiprocessing.parent_process())]
    said["random"] = [torch.initial_seed(), numpy.random.rand()]
    multiprocessing.set_start_method("spawn")
    for how in ("fork", "spawn", "forkserver", None):
        loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, batch_size=2, multiprocessing_context=how)
        said[str(how)] = [batch[1].tolist() for batch in loader]
    queue = multiprocessing.SimpleQueue()
    torch.multiprocessing.spawn(child, (queue,), nprocs=1)
    said["child"], said["elastic"] = queue.get(), dist.is_torchelastic_launched()
    said["itself"] = __import__("train").Config is not Config
    for given in ({}, {"init_method": "env://", "rank": int(said["RANK"]), "world_size": int(said["WORLD_SIZE"])}):
        dist.init_process_group("gloo", **given)
        total, other = torch.ones(1), dist.new_group()
        dist.new_group([0])
        dist.all_reduce(total, group=other)
        said.setdefault("sums", []).append(total.item())
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        said["kept"] = group() is not None  # Freed with a model, it could wait for ever.
    atexit.register(print, json.dumps(said))

if __name__ == "__main__":
    main()
"""
ENDING = """
import os, signal, sys, time
how, rank = sys.argv[1], os.environ["RANK"]
def inner():
    raise ValueError("of the script")
def save(number, frame):
    time.sleep(2.5)  # Longer than ranks have that another's failure ends.
    sys.exit(75)
if how == "save" or (how == "first saves" and rank == "0"):
    [signal.signal(number, save) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)]
if how == "stays":
    signal.signal(signal.SIGINT, lambda *stop: None)
if rank == sys.argv[-1]:
    exec(how)
print("ready", flush=True)
time.sleep(0 if how.endswith(("_exit(0)", "_exit(75)", "exit(0)", "exit(75)")) else 60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["one", "two", "torchrun", "mpirun"])
def test_a_script_has_what_torchrun_gives_it(environ, tmp_path: Path, launcher: str) -> None:
    lay(tmp_path, {"two words/train.py": WHOLE, "words.txt": "of the folder", "in": "typed"})
    (tmp_path / "tmp").mkdir()
    own, world = ["two words/train.py", "--lr", "1", "a=b", "--help"], 1 if launcher == "one" else 2
    run = ["-m", "noether", "run", *(["--accelerator=cpu", f"--devices={world}"] * (launcher in ("one", "two"))), *own]
    before = {"torchrun": torchrun(), "mpirun": ["mpirun", "--oversubscribe", "-n", "2", sys.executable]}
    env = {**environ, **AS_ROOT, "PYTHONPATH": str(REPOSITORY), "TMPDIR": str(tmp_path / "tmp")}
    find_program("mpirun", "openmpi-bin")
    with open(tmp_path / "in") as stdin:
        command = [*before.get(launcher, [sys.executable]), *run]
        done = subprocess.run(command, env=env, cwd=tmp_path, stdin=stdin, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert launcher in before or not list((tmp_path / "tmp").iterdir())
    ranks = sorted((json.loads(line) for line in done.stdout.splitlines()), key=lambda said: said["RANK"])
    for rank, said in enumerate(ranks):
        numbers = dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)) | {"GROUP_WORLD_SIZE": "1"}
        numbers |= dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), str(world))
        numbers |= dict.fromkeys(("NODE_RANK", "GROUP_RANK", "TORCHELASTIC_RESTART_COUNT"), "0")
        assert said | numbers | {"OMP_NUM_THREADS": "1", "TORCHELASTIC_MAX_RESTARTS": "0"} == said
        assert (said["argv"], said["words"], said["hint"]) == (own, "of the folder", "__main__.Config | None")
        assert (said["saved"], said["elastic"], said["child"], said["itself"]) == ([True, 0.1], True, [0, 0.1], True)
        assert [said[how] for how in ("fork", "spawn", "forkserver", "None")] == [[[rank, rank]]] * 4
        assert (said["process"], said["sums"]) == (["MainProcess", "None"], [world, world])
        assert said["kept"] == (world > 1)
    assert launcher in before or [said["stdin"] for said in ranks] == ["typed", ""][:world]
    assert len({said["random"][0] for said in ranks}) == len({said["random"][1] for said in ranks}) == world


IN_IMAGE = f"""import sys; sys.path.insert(0, "{REPOSITORY}")
from noether.cli import entry; from noether.common import process_defaults as own; own.IMAGE_RECORD = own.Path("/")
entry.main()"""
GIVEN = "import os, sys, own, torch\nprint(own.__file__, os.environ['PYTHONPATH'] + chr(10), end='', flush=True)"
SHOWN = "import os, sys, own\nprint(sys.argv[0], __name__, __package__, sys.path[0], own.__file__, sep='|')"


@pytest.mark.parametrize(
    ("files", "words", "shown"),
    [
        ({"a b/t.py": SHOWN, "a b/own.py": ""}, ["a b/t.py"], "a b/t.py|__main__|None|#/a b|#/a b/own.py"),
        ({"a=b.py": SHOWN, "own.py": ""}, ["a=b.py", "--devices=3"], "a=b.py|__main__|None|#|#/own.py"),
        ({"p/t.py": SHOWN, "own.py": "", "p/__init__.py": ""}, ["-m", "p.t"], "#/p/t.py|__main__|p|#|#/own.py"),
        ({"p/t.py": SHOWN, "own.py": "", "p/__init__.py": ""}, ["-m=p.t", "a=b"], "#/p/t.py|__main__|p|#|#/own.py"),
        ({"d/__main__.py": SHOWN, "d/own.py": ""}, ["d"], "d|__main__||#/d|#/d/own.py"),
        ({"t.py": SHOWN, "own.py": "", "x": ""}, ["--", "t.py"], "t.py|__main__|None|#|#/own.py"),
    ],
)
def test_a_script_is_main(noether, tmp_path: Path, files: dict[str, str], words: list[str], shown: str) -> None:
    lay(tmp_path, files)
    done = noether(*CPU, "1", *words, cwd=tmp_path, code=0)
    assert done.out.strip() == shown.replace("#", str(tmp_path))


@pytest.mark.parametrize("words", ["t.py", "-m given.t"])
def test_python_path_is_a_script_s_in_the_image_too(environ, tmp_path: Path, words: str) -> None:
    """PYTHONPATH comes after the image's packages: Apptainer passes the host's value, which may contain a torch."""
    lay(tmp_path, {"t.py": GIVEN, "p/given/t.py": GIVEN, "p/own.py": "", "p/torch.py": "raise SystemExit('hidden')"})
    command, environ = [sys.executable, "-Ic", IN_IMAGE, *CPU, "2", *words.split()], environ | {"PYTHONPATH": "p"}
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"{tmp_path}/p/own.py p\n" * 2, done.stderr


@pytest.mark.parametrize(
    ("how", "code", "said"),
    [
        ("inner()", 1, 'ValueError: of the script\nTraceback (most recent call last):\n  File "#/t.py", line '),
        ("sys.exit(3)", 3, "left early by sys.exit(3)\n"),
        ("sys.exit(-1)", 255, "left early by sys.exit(255)\n"),
        ("sys.exit('a text')", 1, "left early by sys.exit('a text')\n"),
        ("sys.exit(75)", 75, ""),
        ("sys.exit(0)", 0, ""),
        ("os._exit(0)", 0, ""),
        ("os._exit(75)", 75, ""),
        ("os._exit(4)", 4, "left early, with exit code 4"),
        ("os.kill(os.getpid(), 9)", 137, "was killed by SIGKILL"),
        ("os.abort()", 134, "was killed by SIGABRT"),
        ("import faulthandler; faulthandler._sigsegv()", 139, "was killed by SIGSEGV"),
        ("1 +", 1, "failed: SyntaxError: invalid syntax\n"),
    ],
)
@pytest.mark.parametrize("rank", ["0", "1"])
def test_how_a_rank_ends(noether, tmp_path: Path, how: str, code: int, said: str, rank: str) -> None:
    (tmp_path / "t.py").write_text(how if how == "1 +" else ENDING)
    began = time.monotonic()
    done = noether(*CPU, "2", "t.py", how, rank, cwd=tmp_path)
    assert (done.code, time.monotonic() - began < 15) == (code, True), done.err
    assert said.replace("#", str(tmp_path)) in done.err
    assert bool(said) == (f"rank {rank}" in done.err)
    assert "launch/script.py" not in done.err.partition("noether: rank")[2]
    assert "Traceback" not in done.err or how in ("inner()", "1 +")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "number", "ranks", "code", "said"),
    [
        ("save", signal.SIGTERM, "2", 75, ""),
        ("save", signal.SIGHUP, "2", 75, ""),
        ("save", signal.SIGUSR1, "1", 75, ""),
        ("save", signal.SIGUSR2, "1", 75, ""),
        ("first saves", signal.SIGUSR1, "2", 138, "rank 0: ended with exit code 75"),
        ("none", signal.SIGTERM, "2", 143, "was ended by SIGTERM, forwarded before it"),
        ("none", signal.SIGTERM, "1", -signal.SIGTERM, ""),
        ("none", signal.SIGUSR1, "1", -signal.SIGUSR1, ""),
        ("ignored", signal.SIGUSR2, "1", -signal.SIGTERM, ""),
        ("none", signal.SIGINT, "2", 130, "a second Ctrl-C ends every rank at once"),
        ("none", signal.SIGINT, "1", 130, "interrupted"),
        ("stays", signal.SIGINT, "2", 130, "interrupted twice; ending every worker"),
    ],
)
def test_a_signal_is_the_script_s(
    environ, start_process, tmp_path: Path, how: str, number: int, ranks: str, code: int, said: str
) -> None:
    (tmp_path / "t.py").write_text(ENDING)
    command = [sys.executable, "-m", "noether", *CPU, ranks, str(tmp_path / "t.py"), how, "none"]
    run = start_process(command, env=environ)
    assert [run.stdout.readline() for _ in range(int(ranks))] == ["ready\n"] * int(ranks)
    run.send_signal(number)
    if how in ("stays", "ignored"):
        time.sleep(1)
        run.send_signal(number if how == "stays" else signal.SIGTERM)
    began = time.monotonic()
    err = run.communicate(timeout=60)[1]
    assert (run.returncode, said in err, time.monotonic() - began < 10) == (code, True, True), err


FOUR = [Gpu(index, f"GPU-{index}{index}") for index in range(4)]
UUIDS, MIG = "GPU-22,GPU-33", "MIG-c6d4f1ef"


@pytest.mark.parametrize(
    ("environ", "devices", "gpus", "mask", "local_ranks"),
    [
        pytest.param({}, None, FOUR, None, "0123", id="all devices"),
        pytest.param({}, "2", FOUR, None, "01", id="the first two"),
        pytest.param({}, "2,3", FOUR, "2,3", "01", id="the last two"),
        pytest.param({}, "1,0", FOUR, "1,0", "01", id="in another order"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "3,1"}, None, FOUR, None, "01", id="a mask"),
        pytest.param({"CUDA_VISIBLE_DEVICES": "3,1"}, "1,", FOUR, "1", "0", id="one of a mask"),
        pytest.param({"CUDA_VISIBLE_DEVICES": UUIDS}, "GPU-33,", FOUR, "GPU-33", "0", id="one of UUIDs"),
        pytest.param({"CUDA_VISIBLE_DEVICES": MIG}, None, [Gpu(0, "GPU-0", (MIG,))], None, "0", id="MIG"),
        pytest.param({"CUDA_VISIBLE_DEVICES": ""}, None, FOUR, None, "0", id="a CPU"),
        pytest.param(step([2], devices=["0,1"])[1], None, FOUR[:2], None, "1", id="a task for each device"),
        pytest.param(step([2], devices=["0"])[1], None, FOUR[:1], "0", "0", id="--gpus-per-task"),
        pytest.param(step([2], devices=["0", "1"])[1], None, FOUR, "1", "0", id="--gpus-per-task, unconfined"),
        pytest.param(step([1, 1], devices=["0,1"])[1], None, FOUR[:2], None, "01", id="a task for each node"),
    ],
)
def test_cuda_local_rank_is_a_rank_s_device(environ, devices, gpus, mask: str | None, local_ranks: str) -> None:
    host = environ.get("SLURMD_NODENAME", "box")
    placement = resolve_placement(LaunchRequest(devices=devices), environ, host, lambda: gpus, NOTHING_KNOWN)
    variables = rank_variables(placement, RunInfo())
    assert "".join(one["LOCAL_RANK"] for one in variables.values()) == local_ranks
    assert {one.get("CUDA_VISIBLE_DEVICES") for one in variables.values()} == {mask}
    assert ("stays as it is" if mask is None else f"CUDA_VISIBLE_DEVICES={mask}") in mask_of(placement)[1]


class Editable:
    """An import finder for a package, like that of an editable install, which adds no path."""

    @staticmethod
    def find_spec(name: str, *others: object) -> ModuleSpec | None:
        return ModuleSpec(name, None) if name == "elsewhere" else None


@pytest.mark.parametrize(
    ("typed", "code", "fix"),
    [
        ("", "no-python-script", "noether run train.py …"),
        ("--devices 2", "no-python-script", "noether run train.py …"),
        ("trian.py", "no-python-script", "noether run train.py …"),
        ("d/trian.py", "no-python-script", "noether run d/train.py …"),
        ("torchrun --nnodes 2 train.py --lr 1", "no-python-script", "noether run train.py …"),
        ("-m no_such.module", "no-python-script", "noether run train.py …"),
        ("job.sh", "no-python-script", "noether run train.py …"),
        ("program", "no-python-script", "noether run train.py …"),
        ("trainer.max_epochs=3 train.py", "not-of-a-launch", "noether run train.py trainer.max_epochs=3      "),
        ("--lr 0.1 train.py", "unknown-flag", "noether run train.py --lr …      (the script's own words follow it)"),
        ("-u train.py", "unknown-flag", "noether run train.py -u …      (the script's own words follow it)"),
        ("--nproc-per-node 2 train.py", "unknown-flag", "devices=2"),
        ("--device 2 train.py", "unknown-flag", "devices=2"),
        ("-m", "flag-without-value", "--module VALUE"),
    ],
)
def test_words_that_are_no_script(tmp_path: Path, monkeypatch, typed: str, code: str, fix: str) -> None:
    lay(tmp_path, {"train.py": "", "d/train.py": "", "job.sh": "python train.py", "program": "\x7fELF\0"})
    monkeypatch.chdir(tmp_path)
    with refusal(code, fix=fix):
        bind(["run", *typed.split()]).run()
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Editable])
    OwnScript("elsewhere.train", is_module=True).check()
    assert bind(["run", "train.py", "--help"]).words == ("--", "train.py", "--help")
    assert bind(["run", "--devices", "1", "--help"]).verb == "help"

"""Test data: a wrong and a right script for each rule of the linter."""

# ruff: noqa: E501  (a table: each example on one line)

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from slurm_lint.finding import Finding
from slurm_lint.job import Job
from slurm_lint.programs import Asked, Site
from slurm_lint.rules import Rule


class Example(NamedTuple):
    """Two scripts: `wrong` violates only one rule, and `right` violates no rule."""

    wrong: str
    right: str


class Taught:
    """A program to teach the linter: `noether train` and `noether run SCRIPT`."""

    rules: Sequence[Rule] = ()

    def script_word(self, words: Sequence[str], *, image: bool) -> int | None:
        if "noether" not in words[0] or not {*words[1:2]} & {"train", "run"} or not (image or words[0] == "noether"):
            return None
        return next(
            (at for at, word in enumerate(words) if word.endswith(".py") or words[at - 1] == "-m" or word[:3] == "--m"),
            0,
        )

    def check(self, job: Job) -> Iterator[Finding]:
        yield from ()


EVERYTHING = Asked(Site(slurm=22.05), (Taught(),), advice=True)
_EXPORT = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n"
_TWO = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
_EACH = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
_FEW = _TWO.replace("gpus-per-node=4", "gpus-per-node=2").replace("per-node=4", "per-node=2")
_SRUN = "srun --kill-on-bad-exit=1 "
_RUN = _SRUN + "python train.py"
_HEAD = 'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
_ENDPOINT = '--rdzv_backend=c10d --rdzv_endpoint="$head_node:$((20000 + SLURM_JOB_ID % 20000))"'
_TORCHRUN = f"torchrun --nnodes=2 --nproc_per_node=4 {_ENDPOINT} train.py"
_MASTER = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
_WORLD = "export WORLD_SIZE=$SLURM_NTASKS\n"
_NOETHER = _SRUN + "noether train trainer.effective_batch_size=64"
_TORCHRUN_STATIC = (
    'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr="$MASTER_ADDR" train.py'
)
_TRAP = "trap 'kill -USR1 $step' USR1\n"


def _script(options: str, body: str) -> str:
    return f"#!/bin/bash\n{options}\n{body}\n"


def _option(wrong: str, right: str) -> Example:
    return _head(f"#SBATCH {wrong}\n", f"#SBATCH {right}\n", body="hostname")


def _body(wrong: str, right: str, *, head: str = _TWO) -> Example:
    return Example(_script(head, wrong), _script(head, right))


def _head(wrong: str, right: str, *, body: str = _RUN) -> Example:
    return Example(_script(wrong, body), _script(right, body))


EXAMPLES: Mapping[str, Example] = {  # {rule: its example}; rules that need a file beside the script are missing.
    "no-shebang": Example("#SBATCH --nodes=1\nhostname\n", "#!/bin/bash\n#SBATCH --nodes=1\nhostname\n"),
    "dos-line-ends": Example("#!/bin/bash\r\nhostname\r\n", "#!/bin/bash\nhostname\n"),
    "shell-syntax": Example("#!/bin/bash\n#SBATCH --nodes=1\necho \"on $(hostname)\nhostname\n", "#!/bin/bash\n#SBATCH --nodes=1\necho \"on $(hostname)\"\nhostname\n"),
    "unknown-option": _option("--ntask-per-node=4", "--ntasks-per-node=4"),
    "site-option": _option("--image=docker:pytorch/pytorch", "--job-name=training"),
    "malformed-option": _option("--nodes=2 two nodes", "--nodes=2 # two nodes"),
    "bad-value": _option("--time=2h", "--time=2:00:00"),
    "options-contradict": _option("--mem=4G --mem-per-cpu=1G", "--mem=4G"),
    "shebang-words": Example("#!/usr/bin/env bash -l\nhostname\n", "#!/usr/bin/env -S bash -l\nhostname\n"),
    "line-as-command": _body("srun hostname \\ \n  --fqdn", "srun hostname \\\n  --fqdn"),
    "unset-variable": _body("torchrun --standalone --nproc_per_node=$SLURM_GPUS train.py", "torchrun --standalone --nproc_per_node=$SLURM_GPUS_ON_NODE train.py", head="#SBATCH --gres=gpu:2"),
    "typographic-dash": _option("\u2013\u2013nodes=2", "--nodes=2"),
    "ignored-option": Example("#!/bin/bash\nhostname\n#SBATCH --time=1:00:00\n", "#!/bin/bash\n#SBATCH --time=1:00:00\nhostname\n"),
    "placeholder": _option("--partition=gpu --nodes=<N>", "--partition=gpu --nodes=2"),
    "variable-in-option": _option("--output=$HOME/%j.out", "--output=%j.out"),
    "script-folder": _body('cd "$(dirname "$0")"\n' + _RUN, 'cd "$SLURM_SUBMIT_DIR"\n' + _RUN),
    "memory-in-megabytes": _option("--mem-per-cpu=4", "--mem-per-cpu=4G"),
    "repeated-option": _option("--constraint=a100\n#SBATCH --constraint=ib", "--constraint=a100&ib"),
    "deepspeed-nodes": _body("deepspeed train.py", "deepspeed --hostfile=hosts train.py", head=_EACH),
    "step-takes-all": _body("srun ./solver a &\nsrun ./solver b &\nwait %1 && wait %2", "srun --ntasks=4 --exact ./solver a &\nsrun --ntasks=4 --exact ./solver b &\nwait %1 && wait %2"),
    "shell-word": _body("srun cd /data && ./solver", "srun bash -c 'cd /data && ./solver'"),
    "one-rank-per-gpu": _head(_TWO.replace("node=4", "node=2", 1), _TWO, body=_NOETHER),
    "missing-srun": _body(_HEAD + _TORCHRUN, _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    "idle-nodes": _body(_SRUN + "--nodes=1 ./solver", _SRUN + "./solver"),
    "launcher-per-task": _head(_TWO, _EACH, body=_HEAD + _SRUN + _TORCHRUN),
    "launcher-in-launcher": _body(_SRUN + "mpirun -n 8 python train.py", "mpirun -n 8 python train.py"),
    "processes-per-node": _body(_HEAD + _SRUN + _TORCHRUN.replace("per_node=4", "per_node=8"), _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    "node-count": _body(_HEAD + _SRUN + _TORCHRUN.replace("nnodes=2", "nnodes=4"), _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    "separate-runs": _body(_SRUN + "torchrun --standalone --nproc_per_node=4 train.py", _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    "deprecated-launcher": _body(_HEAD + _SRUN + "python -m torch.distributed.launch --use_env" + _TORCHRUN[8:], _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    "mpi-count": _body("mpirun -n 16 ./solver", "mpirun -n 8 ./solver"),
    "srun-cpus": _body("#SBATCH --cpus-per-task=8\n" + _RUN, "#SBATCH --cpus-per-task=8\n" + _EXPORT + _RUN),
    "visible-devices": _body("export CUDA_VISIBLE_DEVICES=4,5,6,7\n" + _RUN, _RUN),
    "master-per-task": _body(_SRUN + "bash -c 'WORLD_SIZE=8 MASTER_ADDR=$(hostname) exec python train.py'", _MASTER + _WORLD + _RUN),
    "master-is-localhost": _body("export MASTER_ADDR=localhost\n" + _WORLD + _RUN, _MASTER + _WORLD + _RUN),
    "master-fixed": _body("export MASTER_ADDR=node017\n" + _RUN, _MASTER + _RUN),
    "master-not-first": _body(_MASTER.replace("head -n 1", "awk 'NR==2'") + _WORLD + _RUN, _MASTER + _WORLD + _RUN),
    "master-not-a-host": _body('export MASTER_ADDR="$SLURM_JOB_NODELIST"\n' + _WORLD + _RUN, _MASTER + _WORLD + _RUN),
    "c10d-without-endpoint": _body(_MASTER + _SRUN + 'torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --master_addr="$MASTER_ADDR" train.py', _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    "expanded-too-early": _body(_MASTER + _SRUN + _TORCHRUN_STATIC, _MASTER + _SRUN + f"bash -c 'exec {_TORCHRUN_STATIC}'", head=_EACH),
    "fixed-port": _body(_MASTER + "export MASTER_PORT=29500\n" + _RUN, _MASTER + "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\n" + _RUN, head=_FEW),
    "port-per-task": _body(_MASTER + _SRUN + "bash -c 'MASTER_PORT=$RANDOM exec python train.py'", _MASTER + _RUN),
    "not-exported": _body(_MASTER.removeprefix("export ") + _RUN, _MASTER + _RUN),
    "node-rank-missing": _body(_MASTER + _SRUN + _TORCHRUN_STATIC.replace(" --node_rank=$SLURM_NODEID", ""), _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    "exit-code-lost": _body(_RUN + "\necho done", "set -e\n" + _RUN + "\necho done"),
    "background-without-wait": _body(_RUN + " &", _RUN + " &\nwait $!"),
    "wait-for-server": _body("set -e\nvllm serve model &\npython evaluate.py\nwait", "set -e\nvllm serve model &\nserver=$!\npython evaluate.py\nkill $server", head="#SBATCH --gpus=1\n"),
    "signal-lead": _head(_TWO + "#SBATCH --signal=USR1@30\n", _TWO + "#SBATCH --signal=USR1@120\n"),
    "signal-lost": _head(_TWO + "#SBATCH --signal=USR1@120\n", _TWO + "#SBATCH --signal=B:USR1@120\n", body=_TRAP + _RUN + " &\nstep=$!\nwait $step\nwait $step"),
    "output-folder": _head(_TWO + "#SBATCH --output=no/such/folder/%j.out\n", _TWO + "#SBATCH --output=%x-%j.out\n"),
    "requeue-truncates": _head(_TWO + "#SBATCH --requeue\n", _TWO + "#SBATCH --requeue\n#SBATCH --open-mode=append\n"),
    "kill-on-bad-exit": _body(_MASTER + "srun python train.py", _MASTER + _RUN),
    "fixed-dependency": _option("--dependency=afterok:46080931", "--dependency=singleton"),
    "hosts-in-one-word": _body('list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\nnodes=("$list")\nsrun -N2 -w "${nodes[1]}" ./solver', 'list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\nnodes=($list)\nsrun -N2 -w "${nodes[1]}" ./solver'),
    "container-without-gpus": _body(_SRUN + "apptainer run noether.sif train trainer.effective_batch_size=64", _SRUN + "apptainer run --nv noether.sif train trainer.effective_batch_size=64"),
    "requeue-without-end": _head("#SBATCH --open-mode=append\n", "#SBATCH --open-mode=append\n", body="./run || scontrol requeue $SLURM_JOB_ID")._replace(right=_script("#SBATCH --open-mode=append", '[ "$SLURM_RESTART_COUNT" -lt 3 ] && ./run || scontrol requeue $SLURM_JOB_ID')),
    "array-truncates": _head("#SBATCH --array=0-4\n#SBATCH --output=run.out\n", "#SBATCH --array=0-4\n#SBATCH --output=run.out.%a\n", body="hostname"),
    "array-from-zero": _head("#SBATCH --array=0-20\n", "#SBATCH --array=1-20\n", body='python train.py $(awk "NR==$SLURM_ARRAY_TASK_ID" params.txt)'),
    "conda-without-hook": _body("conda activate torch\n" + _RUN, 'eval "$(conda shell.bash hook)"\nconda activate torch\n' + _RUN),
}  # fmt: skip

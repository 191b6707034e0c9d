"""The table of rules, from which docs/lint.md is written and which the tests run, example by example."""

# ruff: noqa: E501  (a table: each example on one line)

from dataclasses import dataclass
from typing import Literal

Level = Literal["error", "warning"]


@dataclass(frozen=True)
class Rule:
    """A rule: its code, its name, the level of most findings, why it is one, and a wrong script beside a right one."""

    code: str
    name: str
    level: Level
    why: str
    wrong: str
    right: str


_EXPORT = "export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK\n"
_TWO = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"
_EACH = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
_SRUN = "srun --kill-on-bad-exit=1 "
_RUN = _SRUN + "python train.py"
_HEAD = 'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
_ENDPOINT = '--rdzv_backend=c10d --rdzv_endpoint="$head_node:$((20000 + SLURM_JOB_ID % 20000))"'
_TORCHRUN = f"torchrun --nnodes=2 --nproc_per_node=4 {_ENDPOINT} train.py"
_MASTER = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
_WORLD = "export WORLD_SIZE=$SLURM_NTASKS\n"
_NOETHER = _SRUN + "noether train trainer.effective_batch_size=64"


def _script(options: str, body: str) -> str:
    return f"#!/bin/bash\n{options}\n{body}\n"


def _option(code: str, name: str, level: Level, why: str, wrong: str, right: str) -> Rule:
    return _head(code, name, level, why, f"#SBATCH {wrong}\n", f"#SBATCH {right}\n", body="hostname")


def _body(code: str, name: str, level: Level, why: str, wrong: str, right: str, *, head: str = _TWO) -> Rule:
    return Rule(code, name, level, why, _script(head, wrong), _script(head, right))


def _head(code: str, name: str, level: Level, why: str, wrong: str, right: str, *, body: str = _RUN) -> Rule:
    return Rule(code, name, level, why, _script(wrong, body), _script(right, body))


_SUBMISSION = (
    Rule("NTH100", "unreadable-file", "error", "The file could not be read; the other files are linted all the same.", "", ""),
    Rule("NTH101", "empty-script", "error", "sbatch refuses an empty script.", "", "#!/bin/bash\nhostname\n"),
    Rule("NTH102", "no-shebang", "error", "sbatch refuses a script whose first line does not begin with #!.",
         "#SBATCH --nodes=1\nhostname\n", "#!/bin/bash\n#SBATCH --nodes=1\nhostname\n"),
    Rule("NTH103", "dos-line-ends", "error", "sbatch refuses lines that end in \\r\\n.", "#!/bin/bash\r\nhostname\r\n", "#!/bin/bash\nhostname\n"),
    Rule("NTH104", "null-character", "error", "The controller refuses a script with a NUL character.", "#!/bin/bash\nhost\0name\n", "#!/bin/bash\nhostname\n"),
    Rule("NTH105", "shell-syntax", "error", "bash itself (`bash -n`, which runs nothing) cannot read the script: a quote or a block is left open, say.",
         "#!/bin/bash\n#SBATCH --nodes=1\necho \"on $(hostname)\nhostname\n", "#!/bin/bash\n#SBATCH --nodes=1\necho \"on $(hostname)\"\nhostname\n"),
    _option("NTH106", "unknown-option", "error", "sbatch refuses options that it does not know, srun's among them; srun likewise.", "--ntask-per-node=4", "--ntasks-per-node=4"),
    _option("NTH107", "site-option", "warning", "The option is not plain sbatch's; your site may add it (Shifter, pyxis, uenv and others are plugins).", "--image=docker:pytorch/pytorch", "--job-name=training"),
    _option("NTH108", "missing-value", "error", "An option that needs a value takes the next word for it, or is refused.", "--partition", "--partition=gpu"),
    _option("NTH109", "unwanted-value", "error", "A switch takes no value.", "--requeue=yes --open-mode=append", "--requeue --open-mode=append"),
    _option("NTH110", "stray-word", "error", "sbatch refuses words that belong to no option ('Invalid directive').", "--nodes=2 two nodes", "--nodes=2 # two nodes"),
    _option("NTH111", "typographic-dash", "error", "An en dash is not a hyphen: sbatch refuses the word, and srun takes it for the program.", "\u2013\u2013nodes=2", "--nodes=2"),
    Rule("NTH112", "ignored-option", "error", "sbatch reads #SBATCH lines up to the first command, and only those spelt so; a warning where the line is misspelt, or sets nothing that shapes the job.",
         "#!/bin/bash\nhostname\n#SBATCH --time=1:00:00\n", "#!/bin/bash\n#SBATCH --time=1:00:00\nhostname\n"),
    _option("NTH113", "placeholder", "warning", "A value has still to be filled in.", "--partition=gpu --nodes=<N>", "--partition=gpu --nodes=2"),
    _option("NTH114", "variable-in-option", "warning", "sbatch expands neither variables nor ~ in #SBATCH lines.", "--output=$HOME/%j.out", "--output=%j.out"),
    _option("NTH120", "bad-nodes", "error", "Nodes are a number or a range least-most.", "--nodes=4-2", "--nodes=2-4"),
    _option("NTH121", "bad-count", "error", "Tasks and CPUs are whole numbers of at least 1.", "--ntasks=0", "--ntasks=1"),
    _option("NTH122", "bad-time", "error", "Time is minutes, H:MM:SS or D-HH:MM:SS; units are refused.", "--time=2h", "--time=2:00:00"),
    _option("NTH123", "bad-memory", "error", "Memory is a whole number with K, M, G or T.", "--mem=1.5G", "--mem=1536M"),
    _option("NTH124", "bad-gpus", "error", "GPUs are gpu:4 or gpu:a100:4 in --gres, 4 or a100:4 in the other options.", "--gres=gpu=4", "--gres=gpu:4"),
    _option("NTH125", "bad-signal", "error", "A signal is [B:]NAME[@seconds].", "--signal=USR1@2min", "--signal=USR1@120"),
    _option("NTH126", "bad-array", "error", "An array is numbers and rising ranges.", "--array=7-0", "--array=0-7"),
    _option("NTH127", "bad-choice", "error", "The option takes certain words only.", "--open-mode=write", "--open-mode=append"),
    _option("NTH130", "memory-options", "error", "sbatch refuses more than one of --mem, --mem-per-cpu, --mem-per-gpu.", "--mem=4G --mem-per-cpu=1G", "--mem=4G"),
    _option("NTH131", "gpu-options", "error", "These GPU options contradict each other, and sbatch refuses them.", "--nodes=2 --gpus=8 --gpus-per-node=2", "--nodes=2 --gpus=4 --gpus-per-node=2"),
)  # fmt: skip
_RANKS = (
    _head("NTH201", "ntasks-override", "error", "--ntasks wins over --ntasks-per-node: --nodes=4 --ntasks-per-node=4 --ntasks=4 holds 16 GPUs and starts 4 tasks. A warning where the program is not known.",
          _TWO + "#SBATCH --ntasks=4\n", _TWO + "#SBATCH --ntasks=8\n", body=_NOETHER),
    _head("NTH202", "one-rank-per-gpu", "error", "srun python is one process per task: fewer tasks than GPUs leave some idle, more share them. Only where the script shows that each task is a rank; a warning where its variables alone do.",
          _TWO.replace("node=4", "node=2", 1), _TWO, body=_NOETHER),
    Rule("NTH203", "spawn-under-srun", "warning", "A program that starts workers itself, in each of several tasks, starts GPUs × tasks workers. (Found where the Python file can be read.)", "", ""),
    _body("NTH204", "missing-srun", "error", "Without srun a command runs once, on the job's first node. A warning where the launcher does not wait for the other nodes.",
          _HEAD + _TORCHRUN, _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    _body("NTH205", "idle-nodes", "warning", "srun --nodes=1 in a job of two nodes leaves one idle, unless other steps run beside it.", _SRUN + "--nodes=1 ./solver", _SRUN + "./solver"),
    _head("NTH206", "launcher-per-task", "error", "torchrun starts a node's workers, so it is to run once per node: 4 tasks × 4 workers are 16 on 4 GPUs.",
          _TWO, _EACH, body=_HEAD + _SRUN + _TORCHRUN),
    _body("NTH207", "launcher-in-launcher", "error", "mpirun in each of several tasks starts a whole run in each.", _SRUN + "mpirun -n 8 python train.py", "mpirun -n 8 python train.py"),
    _body("NTH208", "processes-per-node", "error", "torchrun's workers need a GPU each; a warning where there are fewer workers than GPUs.",
          _HEAD + _SRUN + _TORCHRUN.replace("per_node=4", "per_node=8"), _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    _body("NTH209", "node-count", "error", "torchrun waits for as many nodes as it was told of.",
          _HEAD + _SRUN + _TORCHRUN.replace("nnodes=2", "nnodes=4"), _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    _body("NTH210", "separate-runs", "error", "--standalone on several nodes, or no --nnodes, is one run on each.",
          _SRUN + "torchrun --standalone --nproc_per_node=4 train.py", _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    _body("NTH211", "deprecated-launcher", "warning", "torch.distributed.launch is deprecated in favour of torchrun.",
          _HEAD + _SRUN + "python -m torch.distributed.launch --use_env" + _TORCHRUN[8:], _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    _body("NTH212", "mpi-count", "warning", "Open MPI refuses more processes than the job has tasks.", "mpirun -n 16 ./solver", "mpirun -n 8 ./solver"),
    _body("NTH213", "srun-tasks-ignored", "warning", "In a job with --ntasks-per-node=4, srun --ntasks-per-node=1 alone starts all of the job's tasks (seen with Slurm 22.05).",
          _SRUN + "--ntasks-per-node=1 ./per_node", _SRUN + "--ntasks=2 --ntasks-per-node=1 ./per_node"),
    _body("NTH214", "srun-cpus", "warning", "From Slurm 22.05 to before 23.11 srun does not take --cpus-per-task from the job, and binds each task to one CPU.",
          "#SBATCH --cpus-per-task=8\n" + _RUN, "#SBATCH --cpus-per-task=8\n" + _EXPORT + _RUN),
    _body("NTH215", "gpus-per-task", "warning", "Where cgroups show a task its own GPU alone, NCCL cannot copy directly between the GPUs of a node.",
          "#SBATCH --gpus-per-task=1\n" + _WORLD + _RUN, "#SBATCH --gpus-per-node=4\n" + _WORLD + _RUN, head="#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n"),
    _body("NTH216", "visible-devices", "warning", "Slurm sets CUDA_VISIBLE_DEVICES to the GPUs it gave, numbered from 0; there is no other.", "export CUDA_VISIBLE_DEVICES=4,5,6,7\n" + _RUN, _RUN),
    Rule("NTH220", "batch-not-divisible", "error", "The effective batch is a multiple of the ranks. (With --hp, or for a script's own noether train.)",
         _script(_TWO.replace("=4", "=3"), _NOETHER), _script(_TWO, _NOETHER)),
    Rule("NTH221", "configuration-refused", "error", "The configuration of the script's noether train is wrong.",
         _script(_TWO, _SRUN + "noether train trainer.precison=bf16"), _script(_TWO, _SRUN + "noether train trainer.precision=bf16")),
)  # fmt: skip
_TORCHRUN_STATIC = (
    'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr="$MASTER_ADDR" train.py'
)
_MEETING = (
    _body("NTH301", "master-per-task", "error", "hostname evaluated in each task names as many masters as nodes. A warning where the program is not known, as in all rules of the master.",
          _SRUN + "bash -c 'WORLD_SIZE=8 MASTER_ADDR=$(hostname) exec python train.py'", _MASTER + _WORLD + _RUN),
    _body("NTH302", "master-is-localhost", "error", "localhost is another host on each node.", "export MASTER_ADDR=localhost\n" + _WORLD + _RUN, _MASTER + _WORLD + _RUN),
    _body("NTH303", "master-fixed", "warning", "The job may run on other nodes.", "export MASTER_ADDR=node017\n" + _RUN, _MASTER + _RUN),
    _body("NTH304", "master-not-first", "error", "Rank 0, which listens, runs on the first node, not on the one that tail, sed -n 2p or awk NR==2 picks. (c10d meets on any node.)", _MASTER.replace("head -n 1", "awk 'NR==2'") + _WORLD + _RUN, _MASTER + _WORLD + _RUN),
    _body("NTH305", "master-not-a-host", "error", "A node list is not a host name, nor is the list of all hosts; the login host runs no rank.", 'export MASTER_ADDR="$SLURM_JOB_NODELIST"\n' + _WORLD + _RUN, _MASTER + _WORLD + _RUN),
    _body("NTH306", "c10d-without-endpoint", "error", "c10d meets at --rdzv_endpoint; --master_addr is for the static backend, and without an endpoint every node looks on itself.",
          _MASTER + _SRUN + 'torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --master_addr="$MASTER_ADDR" train.py', _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    _body("NTH307", "expanded-too-early", "error", "The batch shell expands $SLURM_NODEID before srun: every node is node 0.",
          _MASTER + _SRUN + _TORCHRUN_STATIC, _MASTER + _SRUN + f"bash -c 'exec {_TORCHRUN_STATIC}'", head=_EACH),
    _body("NTH308", "fixed-port", "warning", "Two jobs on one node collide; a job that has its nodes for itself (--exclusive) is left alone.", _MASTER + "export MASTER_PORT=29500\n" + _RUN, _MASTER + "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\n" + _RUN),
    _body("NTH309", "port-per-task", "error", "A port drawn in each task is another for each rank.",
          _MASTER + _SRUN + "bash -c 'MASTER_PORT=$RANDOM exec python train.py'", _MASTER + _RUN),
    _body("NTH310", "export-drops", "warning", "--export=NONE keeps exported variables from the tasks.", _MASTER + _SRUN + "--export=NONE python train.py", _MASTER + _RUN),
    _body("NTH311", "not-exported", "warning", "A variable that is not exported reaches no task.", _MASTER.removeprefix("export ") + _RUN, _MASTER + _RUN),
    _body("NTH312", "nccl-interface", "warning", "An exclusion replaces NCCL's own, lo among them; an error for lo alone on several nodes.",
          "export NCCL_SOCKET_IFNAME=^docker0\n" + _RUN, "export NCCL_SOCKET_IFNAME=^docker0,lo\n" + _RUN),
    _body("NTH313", "gloo-interface", "warning", "gloo takes names of interfaces, and knows no exclusions.", "export GLOO_SOCKET_IFNAME=^docker0\n" + _RUN, _RUN),
)  # fmt: skip
_TRAP = "trap 'kill -USR1 $step' USR1\n"
_ENDING = (
    _body("NTH401", "exit-code-lost", "warning", "The run's exit code does not reach the script's end: a failed run ends as COMPLETED, and jobs that depend on it start.",
          _RUN + "\necho done", "set -e\n" + _RUN + "\necho done"),
    _body("NTH402", "background-without-wait", "error", "At the script's end Slurm ends what runs in the background.", _RUN + " &", _RUN + " &\nwait $!"),
    _body("NTH403", "wait-for-server", "warning", "A bare wait waits for the server in the background too, so the job runs to its time limit.",
          "set -e\nvllm serve model &\npython evaluate.py\nwait", "set -e\nvllm serve model &\nserver=$!\npython evaluate.py\nkill $server", head="#SBATCH --gpus=1\n"),
    _head("NTH404", "signal-lead", "warning", "Slurm looks about every 30 s whether a signal is due.", _TWO + "#SBATCH --signal=USR1@30\n", _TWO + "#SBATCH --signal=USR1@120\n"),
    _head("NTH405", "signal-lost", "error", "Without B: only srun's tasks get it, so a trap in the script does not run; with B: only a trap gets it, while srun runs in the background. A warning where there is no trap at all.",
          _TWO + "#SBATCH --signal=USR1@120\n", _TWO + "#SBATCH --signal=B:USR1@120\n", body=_TRAP + _RUN + " &\nstep=$!\nwait $step\nwait $step"),
    _head("NTH406", "output-folder", "warning", "Slurm before 23.02 makes no folder for the output; a folder that the script makes comes too late.", _TWO + "#SBATCH --output=no/such/folder/%j.out\n", _TWO + "#SBATCH --output=%x-%j.out\n"),
    _head("NTH407", "requeue-truncates", "warning", "A requeued job writes over the output of its first run.", _TWO + "#SBATCH --requeue\n", _TWO + "#SBATCH --requeue\n#SBATCH --open-mode=append\n"),
    _body("NTH408", "kill-on-bad-exit", "warning", "Without it the other tasks of a training wait for the one that failed, until they time out.", _HEAD + "srun " + _TORCHRUN, _HEAD + _SRUN + _TORCHRUN, head=_EACH),
    _body("NTH501", "container-without-gpus", "error", "Without --nv (apptainer) or --gpus (docker, podman) a container has no GPU; AMD's GPUs are left out. An error for noether, which refuses to start; else a warning.",
          _SRUN + "apptainer run noether.sif train trainer.effective_batch_size=64", _SRUN + "apptainer run --nv noether.sif train trainer.effective_batch_size=64"),
    _body("NTH502", "container-cleanenv", "error", "--cleanenv takes SLURM_* from the tasks. An error for noether, else a warning.",
          _SRUN + "apptainer run --nv --cleanenv noether.sif train trainer.effective_batch_size=64", _SRUN + "apptainer run --nv noether.sif train trainer.effective_batch_size=64"),
    _head("NTH601", "claim-arithmetic", "warning", "The numbers in a comment or a README do not add up.", _TWO + "# 4 nodes × 8 GPUs = 16\n", _TWO + "# 2 nodes × 4 GPUs = 8\n"),
    _head("NTH602", "claim-mismatch", "warning", "A comment says other numbers than the options.", _TWO + "# 2 nodes × 8 GPUs\n", _TWO + "# 2 nodes × 4 GPUs\n"),
)  # fmt: skip
RULES: tuple[Rule, ...] = (*_SUBMISSION, *_RANKS, *_MEETING, *_ENDING)
BY_NAME = {rule.name: rule for rule in RULES}

"""Which rules are there? The table that docs/lint.md is written from and that the tests run, example by example."""

# ruff: noqa: E501  (a table: each example on one line)

from noether.lint.finding import Level, Rule

_TWO = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"
_ONE = "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=8\n"
_EACH = "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n#SBATCH --cpus-per-task=32\n"
_RUN = "srun --kill-on-bad-exit=1 python train.py"
_SRUN = "srun --kill-on-bad-exit=1 "
_HEAD = 'head_node=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'
_ENDPOINT = '--rdzv_backend=c10d --rdzv_endpoint="$head_node:$((20000 + SLURM_JOB_ID % 20000))"'
_TORCHRUN = f"torchrun --nnodes=2 --nproc_per_node=4 {_ENDPOINT} train.py"
_MASTER = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\n'


def _script(options: str, body: str = _RUN) -> str:
    return f"#!/bin/bash\n{options}\n{body}\n"


def _option(name: str, level: Level, why: str, bad: str, good: str, head: str = "") -> Rule:
    return Rule(
        name, level, why, _script(f"{head}#SBATCH {bad}\n", "hostname"), _script(f"{head}#SBATCH {good}\n", "hostname")
    )


def _body(name: str, level: Level, why: str, bad: str, good: str, head: str = _TWO) -> Rule:
    return Rule(name, level, why, _script(head, bad), _script(head, good))


def _head(name: str, level: Level, why: str, bad: str, good: str, body: str = _RUN) -> Rule:
    return Rule(name, level, why, _script(bad, body), _script(good, body))


_SUBMISSION = (
    Rule("empty-script", "error", "sbatch refuses an empty script.", "", "#!/bin/bash\nhostname\n"),
    Rule("no-shebang", "error", "sbatch refuses a script whose first line does not begin with #!.",
         "#SBATCH --nodes=1\nhostname\n", "#!/bin/bash\n#SBATCH --nodes=1\nhostname\n"),
    Rule("dos-line-ends", "error", "sbatch refuses lines that end in \\r\\n.", "#!/bin/bash\r\nhostname\r\n", "#!/bin/bash\nhostname\n"),
    Rule("null-character", "error", "The controller refuses a script with a NUL character.", "#!/bin/bash\nhost\0name\n", "#!/bin/bash\nhostname\n"),
    _option("unknown-option", "error", "sbatch refuses options that it does not know, srun's among them.", "--ntask-per-node=4", "--ntasks-per-node=4"),
    _option("missing-value", "error", "An option that needs a value takes the next word for it, or is refused.", "--partition", "--partition=gpu"),
    _option("unwanted-value", "error", "A switch takes no value.", "--requeue=yes --open-mode=append", "--requeue --open-mode=append"),
    _option("stray-word", "error", "sbatch refuses words that belong to no option ('Invalid directive').", "--nodes=2 two nodes", "--nodes=2 # two nodes"),
    Rule("ignored-option", "error", "sbatch reads #SBATCH lines up to the first command, and only those spelt so; a warning where it is ##SBATCH or another line sets the option.",
         "#!/bin/bash\nhostname\n#SBATCH --time=1:00:00\n", "#!/bin/bash\n#SBATCH --time=1:00:00\nhostname\n"),
    _option("bad-nodes", "error", "Nodes are a number or a range least-most.", "--nodes=4-2", "--nodes=2-4"),
    _option("bad-count", "error", "Tasks and CPUs are whole numbers of at least 1.", "--ntasks=0", "--ntasks=1"),
    _option("bad-time", "error", "Time is minutes, H:MM:SS or D-HH:MM:SS; units are refused.", "--time=2h", "--time=2:00:00"),
    _option("bad-memory", "error", "Memory is a whole number with K, M, G or T.", "--mem=1.5G", "--mem=1536M"),
    _option("bad-gpus", "error", "GPUs are gpu:4 or gpu:a100:4 in --gres, 4 or a100:4 in the other options.", "--gres=gpu=4", "--gres=gpu:4"),
    _option("bad-signal", "error", "A signal is [B:]NAME[@seconds].", "--signal=USR1@2min", "--signal=USR1@120"),
    _option("bad-array", "error", "An array is numbers and rising ranges.", "--array=7-0", "--array=0-7"),
    _option("bad-choice", "error", "The option takes certain words only.", "--open-mode=write", "--open-mode=append"),
    _option("memory-options", "error", "sbatch refuses more than one of --mem, --mem-per-cpu, --mem-per-gpu.", "--mem=4G --mem-per-cpu=1G", "--mem=4G"),
    _option("gpu-options", "error", "These GPU options contradict each other, and sbatch refuses them.", "--nodes=2 --gpus=8 --gpus-per-node=2", "--nodes=2 --gpus=4 --gpus-per-node=2"),
)  # fmt: skip
_RANKS = (
    _head("ntasks-override", "error", "--ntasks wins over --ntasks-per-node: --nodes=4 --ntasks-per-node=4 --ntasks=4 holds 16 GPUs and starts 4 tasks.",
          _TWO + "#SBATCH --ntasks=2\n", _TWO + "#SBATCH --ntasks=8\n"),
    _head("one-rank-per-gpu", "error", "srun python is one process per task: fewer tasks leave GPUs idle, more share them.",
          _EACH, _TWO),
    _head("uneven-tasks", "warning", "-N2 -n4 may put three tasks on one node and one on the other.",
          "#SBATCH --nodes=2\n#SBATCH --ntasks=4\n#SBATCH --gpus-per-node=2\n#SBATCH --cpus-per-task=8\n",
          "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=2\n#SBATCH --gpus-per-node=2\n#SBATCH --cpus-per-task=8\n"),
    _head("idle-gpus", "warning", "One process that starts no workers uses one GPU, also under --ntasks=1 --gres=gpu:8: that takes torchrun, noether train or a task for each GPU.",
          "#SBATCH --gpus=4\n#SBATCH --cpus-per-task=8\n", "#SBATCH --gpus=1\n#SBATCH --cpus-per-task=8\n", "python train.py"),
    _body("idle-nodes", "warning", "srun --nodes=1 in a job of two nodes leaves one idle, unless other steps run beside it.", _SRUN + "--nodes=1 python train.py", _RUN),
    _body("missing-srun", "error", "Without srun a command runs once, on the job's first node, whatever other steps srun starts; a warning where the program before it might be the training.",
          _SRUN + "hostname\npython train.py", _SRUN + "hostname\n" + _RUN),
    _head("launcher-per-task", "error", "torchrun starts a node's workers, so it is to run once per node: 4 tasks × 4 workers are 16 on 4 GPUs.",
          _TWO, _EACH, _HEAD + _SRUN + _TORCHRUN),
    _body("launcher-in-launcher", "error", "mpirun under srun starts a whole run in each task.", _SRUN + "mpirun -n 8 python train.py", "mpirun -n 8 python train.py"),
    _body("processes-per-node", "error", "As many workers as GPUs on a node; a warning where there are fewer.",
          _HEAD + _SRUN + _TORCHRUN.replace("per_node=4", "per_node=8"), _HEAD + _SRUN + _TORCHRUN, _EACH),
    _body("node-count", "error", "torchrun waits for as many nodes as it was told of.",
          _HEAD + _SRUN + _TORCHRUN.replace("nnodes=2", "nnodes=4"), _HEAD + _SRUN + _TORCHRUN, _EACH),
    _body("separate-runs", "error", "--standalone on several nodes is one run each; a warning where --nnodes is missing.",
          _SRUN + "torchrun --standalone --nproc_per_node=4 train.py", _HEAD + _SRUN + _TORCHRUN, _EACH),
    _body("deprecated-launcher", "warning", "torch.distributed.launch is deprecated in favour of torchrun.",
          _HEAD + _SRUN + "python -m torch.distributed.launch" + _TORCHRUN[8:], _HEAD + _SRUN + _TORCHRUN, _EACH),
    _body("mpi-count", "error", "mpirun refuses more processes than the job has tasks.", "mpirun -n 16 ./solver", "mpirun -n 8 ./solver"),
    _body("srun-tasks-ignored", "error", "Under sbatch --ntasks-per-node=4, srun --ntasks-per-node=1 alone starts all of the job's tasks.",
          _HEAD + _SRUN + "--ntasks-per-node=1 ./per_node", _HEAD + _SRUN + "--ntasks=2 --ntasks-per-node=1 ./per_node"),
    Rule("spawn-under-srun", "error", "mp.spawn in each of several tasks starts GPUs × tasks workers. (Found where the Python file can be read.)", "", ""),
    _head("gpus-per-task", "warning", "A task that sees one GPU alone loses NCCL's direct copies within the node.",
          "#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-task=1\n#SBATCH --cpus-per-task=8\n", _TWO),
    _head("cpus-per-task", "warning", "Without it a task has one CPU for everything.", _TWO.replace("#SBATCH --cpus-per-task=8\n", ""), _TWO),
    _body("visible-devices", "warning", "Slurm sets CUDA_VISIBLE_DEVICES.", "export CUDA_VISIBLE_DEVICES=0,1,2,3\n" + _RUN, _RUN),
    Rule("batch-not-divisible", "error", "The effective batch is a multiple of the ranks. (With --hp, or for a script's own noether train.)",
         _script(_TWO.replace("=4", "=3"), _SRUN + "noether train trainer.effective_batch_size=64"),
         _script(_TWO, _SRUN + "noether train trainer.effective_batch_size=64")),
    Rule("configuration-refused", "error", "The configuration of the script's noether train is wrong.",
         _script(_TWO, _SRUN + "noether train trainer.precison=bf16"), _script(_TWO, _SRUN + "noether train trainer.precision=bf16")),
)  # fmt: skip
_MEETING = (
    _body("master-per-task", "error", "hostname evaluated in each task names as many masters as nodes.",
          _SRUN + "bash -c 'MASTER_ADDR=$(hostname) exec python train.py'", _MASTER + _RUN),
    _body("master-is-localhost", "error", "localhost is another host on each node.", "export MASTER_ADDR=localhost\n" + _RUN, _MASTER + _RUN),
    _body("master-fixed", "error", "The job may run on other nodes; a warning on one node.", "export MASTER_ADDR=node017\n" + _RUN, _MASTER + _RUN),
    _body("master-not-first", "error", "Rank 0, which listens, runs on the first node, not on the one that tail, sed -n 2p or awk NR==2 picks.", _MASTER.replace("head -n 1", "awk 'NR==2'") + _RUN, _MASTER + _RUN),
    _body("master-not-a-host", "error", "A node list is no host name (nor for ssh, --host, --dist-url or a loop), and the login host runs no rank.", 'export MASTER_ADDR="$SLURM_JOB_NODELIST"\n' + _RUN, _MASTER + _RUN),
    _body("master-of-the-job", "error", "A step on some of the nodes may leave out the job's first.",
          _MASTER + _SRUN + "--nodes=1 --ntasks=4 --nodelist=n2 python train.py", _MASTER + _RUN),
    _body("fixed-port", "warning", "Two jobs on one node collide.", _MASTER + "export MASTER_PORT=29500\n" + _RUN, _MASTER + "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))\n" + _RUN),
    _body("port-per-task", "error", "A port drawn in each task is another for each rank.",
          _MASTER + _SRUN + "bash -c 'MASTER_PORT=$RANDOM exec python train.py'", _MASTER + _RUN),
    _body("expanded-too-early", "error", "The batch shell expands $SLURM_NODEID before srun: every node is node 0.",
          _MASTER + _SRUN + 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr="$MASTER_ADDR" train.py',
          _MASTER + _SRUN + """bash -c 'exec torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr="$MASTER_ADDR" train.py'""", _EACH),
    _body("export-drops", "error", "--export=NONE keeps exported variables from the tasks.", _MASTER + _SRUN + "--export=NONE python train.py", _MASTER + _RUN),
    _body("not-exported", "error", "A variable that is not exported reaches no task.", _MASTER.removeprefix("export ") + _RUN, _MASTER + _RUN),
    _body("nccl-interface", "error", "An exclusion replaces NCCL's own, lo among them; a warning on one node.",
          "export NCCL_SOCKET_IFNAME=^docker0\n" + _RUN, "export NCCL_SOCKET_IFNAME=^docker0,lo\n" + _RUN),
    _body("gloo-interface", "warning", "One interface's name does not hold on every machine; an error with ^, which gloo does not know.",
          "export GLOO_SOCKET_IFNAME=eth0\n" + _RUN, _RUN),
)  # fmt: skip
_TRAP = "trap 'kill -USR1 $step' USR1\n"
_ENDING = (
    _body("exit-code-lost", "error", "A failed run ends as COMPLETED, and jobs that depend on it start; a warning for a bare wait.",
          _RUN + "\necho done", "set -e\n" + _RUN + "\necho done"),
    _body("background-without-wait", "error", "At the script's end Slurm ends what runs in the background.", _RUN + " &", _RUN + " &\nwait $!"),
    _head("signal-lead", "warning", "Slurm looks about every 30 s whether a signal is due.", _TWO + "#SBATCH --signal=USR1@30\n", _TWO + "#SBATCH --signal=USR1@120\n"),
    _head("signal-lost", "error", "Without B: only srun's tasks get it; with B: only a trap, while srun runs in the background.",
          _TWO + "#SBATCH --signal=B:USR1@120\n", _TWO + "#SBATCH --signal=USR1@120\n"),
    _head("output-folder", "warning", "Slurm makes no folders; the output is lost.", _TWO + "#SBATCH --output=no/such/folder/%j.out\n", _TWO + "#SBATCH --output=%x-%j.out\n"),
    _head("requeue-truncates", "warning", "A requeued job writes over the output of its first run.", _TWO + "#SBATCH --requeue\n", _TWO + "#SBATCH --requeue\n#SBATCH --open-mode=append\n"),
    _body("kill-on-bad-exit", "warning", "Without it the other ranks wait for the one that failed.", "srun python train.py", _RUN),
    _body("container-cleanenv", "error", "--cleanenv takes SLURM_* from the tasks.",
          _SRUN + "apptainer exec --nv --cleanenv torch.sif python train.py", _SRUN + "apptainer exec --nv torch.sif python train.py"),
    _body("container-without-nv", "error", "Without --nv a container has no GPU.",
          _SRUN + "apptainer exec torch.sif python train.py", _SRUN + "apptainer exec --nv torch.sif python train.py"),
    _head("claim-arithmetic", "error", "The numbers do not add up.", _TWO + "# 4 nodes × 8 GPUs = 16\n", _TWO + "# 2 nodes × 4 GPUs = 8\n"),
    _head("claim-mismatch", "warning", "A comment says other numbers than the options.", _TWO + "# 2 nodes × 8 GPUs\n", _TWO + "# 2 nodes × 4 GPUs\n"),
)  # fmt: skip
RULES: tuple[Rule, ...] = (*_SUBMISSION, *_RANKS, *_MEETING, *_ENDING)


def rules_reference() -> str:
    """Returns docs/lint.md."""
    lines = [_INTRODUCTION]
    for rule in RULES:
        lines += [f"## {rule.name}", "", f"{rule.level.capitalize()}. {rule.why}", ""]
        for title, text in (("Wrong", rule.bad), ("Right", rule.good)):
            if text and "\0" not in text:
                shown = text.replace("\r", "␍").rstrip("\n")
                lines += [f"{title}:", "", "```bash", shown, "```", ""]
    return "\n".join(lines)


_INTRODUCTION = """\
# `noether lint`: what is wrong with a job script before it waits in the queue

```
noether lint job.sbatch                 # findings, each with the line to write, and what the job would start
noether lint job.sbatch --json          # [{line, level, rule, message, fix}], with `file` for several files
noether lint job.sbatch --fix           # writes job.fixed.sbatch beside it; the original is never changed
noether lint job.sbatch --hp my.yaml    # can the job's ranks share the batch of this configuration?
noether lint --rules                    # the rules, one a line
```

Any script for sbatch will do, whatever it starts: `srun python`, torchrun, accelerate, mpirun, apptainer. A folder is
searched for the scripts that submitit writes; in a README the job scripts in code blocks and the arithmetic of nodes and
GPUs are read. Exit code: 1 where there are errors, 0 where there are warnings or nothing, 2 for a file that cannot be read.

An error will make the job fail, hang, train something else or be refused; a warning costs time or luck. What sbatch
refuses was held against sbatch of Slurm 22.05. Only the script and what lies beside it are read: whether a partition or
so many GPUs exist, the cluster alone knows. This page is written by
`python -c 'from noether.lint.rules import rules_reference as r; print(r(), end="")' > docs/lint.md`.
"""

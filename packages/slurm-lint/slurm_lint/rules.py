"""The table of rules, from which docs/lint-rules.md is written."""

# ruff: noqa: E501  (a table: each rule on one line)

from typing import Literal, NamedTuple, get_args

Level = Literal["error", "warning", "advice"]
LEVELS = get_args(Level)
"""An error is certain, a warning likely; advice is shown on request."""


class Rule(NamedTuple):
    """A rule: its code, its name, the level of most findings, and why it is one."""

    code: str
    name: str
    level: Level
    why: str
    versions: tuple[float, float] | None = None
    """The Slurm that it depends on: from this version to before that. Reported where --slurm names one of them."""


RULES: tuple[Rule, ...] = (
    # The form of a script and its options.
    Rule("NTH100", "unreadable-file", "error", "The file could not be read; the other files are linted all the same."),
    Rule("NTH102", "no-shebang", "error", "sbatch refuses a script whose first line does not begin with #!. (Where a file has #SBATCH lines or is called .sbatch, .slurm or .job.)"),
    Rule("NTH103", "dos-line-ends", "error", "sbatch refuses lines that end in \\r\\n."),
    Rule("NTH105", "shell-syntax", "error", "bash itself (`bash -n`, which runs nothing) cannot read the script. Of other languages (python, tcsh, R) the options alone are read."),
    Rule("NTH106", "unknown-option", "error", "sbatch refuses options that it does not know, srun's among them; srun likewise."),
    Rule("NTH107", "site-option", "advice", "The option is not plain sbatch's, but of a plugin (Shifter, pyxis, uenv and others). A warning where no plugin is known that has it."),
    Rule("NTH110", "malformed-option", "error", "sbatch refuses words that belong to no option ('Invalid directive'), and an option without its value."),
    Rule("NTH111", "typographic-dash", "error", "An en dash is not a hyphen: sbatch refuses the word, and srun takes it for the program."),
    Rule("NTH112", "ignored-option", "error", "sbatch reads #SBATCH lines up to the first command, one request a line. A warning where the line is misspelt or does not shape the job; `# SBATCH` is left alone where another line says otherwise, or tells how to switch such lines on."),
    Rule("NTH113", "placeholder", "warning", "A value, or a path in a command, has still to be filled in, or is empty. One finding for the #SBATCH lines of a script and one for its commands names them all."),
    Rule("NTH114", "variable-in-option", "warning", "sbatch expands neither variables nor ~ in #SBATCH lines."),
    Rule("NTH115", "shebang-words", "error", "env gets what follows it in the first line as one word, and finds no program 'bash -l'; env -S splits it. And sbatch as the interpreter submits the script again, without end."),
    Rule("NTH116", "line-as-command", "error", "A line that begins with an option is run as a command: the line before has no backslash at its very end. So is a ~ that an editor left, and a variable's name before ` = `."),
    Rule("NTH117", "script-folder", "warning", "Slurm runs a copy of the script in a folder of its own: $0 and BASH_SOURCE lead there, and nothing that lay beside the script is there. Left alone where SLURM_SUBMIT_DIR, scontrol show job or sbatch is used too."),
    Rule("NTH120", "bad-value", "error", "sbatch refuses the value: nodes are a number or least-most, counts at least 1, time minutes, H:MM:SS or D-HH:MM:SS, memory a whole number with K, M, G or T, GPUs gpu:4 in --gres and 4 elsewhere, a signal [B:]NAME[@seconds], an array rising ranges."),
    Rule("NTH131", "options-contradict", "error", "sbatch refuses these options together: more than one of --mem, --mem-per-cpu and --mem-per-gpu, or numbers of GPUs that contradict each other."),
    Rule("NTH132", "memory-in-megabytes", "warning", "Memory without a unit is in megabytes: --mem-per-cpu=4 is 4 MB."),
    Rule("NTH133", "repeated-option", "warning", "Of an option that is given twice sbatch reads the last: two --constraint are not both held."),
    Rule("NTH140", "site-partition", "error", "The site has no such partition. (With a site file.)"),
    Rule("NTH141", "site-required", "error", "The site refuses a job that does not give this option; a script without any option of sbatch is left alone, for it may be given them all on the command line. (With a site file.)"),
    Rule("NTH134", "fixed-dependency", "warning", "The number of a job in a script is of one submission: the next waits for a job that is over, or is refused."),
    # Tasks, launchers and GPUs.
    Rule("NTH202", "one-rank-per-gpu", "error", "srun and mpirun start one process per task (--ntasks wins over --ntasks-per-node): fewer than GPUs leave some idle, more share them. Only where each task is shown to be a rank; a warning where variables alone show it, or Python is started more often than there are GPUs."),
    Rule("NTH204", "missing-srun", "error", "Without srun a command runs once, on the job's first node. A warning where the launcher does not wait for the other nodes."),
    Rule("NTH205", "idle-nodes", "warning", "srun --nodes=1 in a job of two nodes leaves one idle, unless other steps run beside it; so does mpirun with no more ranks than one node's tasks."),
    Rule("NTH206", "launcher-per-task", "error", "torchrun and accelerate start a node's workers: 4 tasks × 4 workers are 16 on 4 GPUs."),
    Rule("NTH207", "launcher-in-launcher", "error", "mpirun in each of several tasks starts a whole run in each, and so does srun in each worker of torchrun."),
    Rule("NTH208", "processes-per-node", "error", "Workers of torchrun, accelerate and deepspeed need a GPU each; a warning where GPUs are left over. torchrun starts one without --nproc_per_node; accelerate's --num_processes counts all machines'."),
    Rule("NTH209", "node-count", "error", "torchrun waits for as many nodes as it was told of."),
    Rule("NTH210", "separate-runs", "error", "--standalone on several nodes, or no --nnodes, is one run on each; apptainer --cleanenv takes SLURM_* from the tasks, and each is a run of its own."),
    Rule("NTH211", "deprecated-launcher", "advice", "torch.distributed.launch is deprecated in favour of torchrun."),
    Rule("NTH212", "mpi-count", "warning", "Open MPI refuses more processes than the job has tasks."),
    Rule("NTH214", "srun-cpus", "warning", "From Slurm 22.05 to before 23.11 srun does not take --cpus-per-task from the job, and binds each task to one CPU.", (22.05, 23.11)),
    Rule("NTH216", "visible-devices", "warning", "Slurm sets CUDA_VISIBLE_DEVICES to the GPUs it gave, numbered from 0; there is no other, and a GPU left out stays idle."),
    Rule("NTH217", "deepspeed-nodes", "error", "deepspeed reaches the nodes of its hostfile by ssh: without one it uses its own alone, and under srun every node starts a run. (There, --no_ssh with --node_rank.)"),
    Rule("NTH219", "step-takes-all", "warning", "A step without --ntasks has all tasks of the job: steps side by side each start all of them, or wait for each other."),
    Rule("NTH223", "unset-variable", "warning", "Slurm sets SLURM_GPUS for --gpus alone, and SLURM_GPUS_PER_NODE for --gpus-per-node: with --gres both are empty. So is SLURM_NTASKS in a batch shell without --ntasks, and a name that Slurm never sets, such as SLURM_CPUS_PER_NODE or SLURM_WORKING_DIR (where the script neither sets nor tests it)."),
    Rule("NTH224", "shell-word", "error", "srun starts programs: cd, source, export and module are words of a shell, of which it finds none or one that does nothing; a whole command line in quotes is the name of no program, nor is A=1 (so under mpirun, nohup and timeout), nor nothing at all."),
    # How the ranks find each other.
    Rule("NTH301", "master-per-task", "error", "hostname in each task names as many masters as nodes. A warning where the program is not known, as in all rules of the master."),
    Rule("NTH302", "master-is-localhost", "error", "localhost is another host on each node."),
    Rule("NTH303", "master-fixed", "warning", "The job may run on other nodes: its ranks then wait for one that is not among them."),
    Rule("NTH304", "master-not-first", "error", "Rank 0 listens on the first node, not on the one that tail, sed -n 2p or awk NR==2 picks. (c10d meets on any.)"),
    Rule("NTH305", "master-not-a-host", "error", "A node list is not a host name, nor is the list of all hosts; the login host runs no rank."),
    Rule("NTH313", "hosts-in-one-word", "warning", "nodes=(\"$list\") is an array of one element: the second host is empty, and a step that is to run there runs elsewhere or hangs."),
    Rule("NTH306", "c10d-without-endpoint", "error", "c10d meets at --rdzv_endpoint; --master_addr is for the static backend, and without an endpoint every node looks on itself."),
    Rule("NTH307", "expanded-too-early", "error", "The batch shell expands $SLURM_NODEID or $SLURM_PROCID before srun, in double quotes too: every task is task 0. A warning for a rank that the batch shell exports (an error for PET_NODE_RANK, and where the program beside the script reads it), and for a variable of the job in `sbatch <<EOF`, which the shell that submits it expands."),
    Rule("NTH308", "fixed-port", "warning", "Two jobs on one node collide, as do those of an array by SLURM_ARRAY_JOB_ID, and two torchrun or deepspeed that are told neither a port nor --standalone. Left alone where nodes are held whole (--exclusive, --mem=0, 8 GPUs, 4 on each of several or with --constraint=gpu outside a shared queue, as at NERSC), and MASTER_PORT that torchrun is not given."),
    Rule("NTH309", "port-per-task", "error", "A port drawn in each task is another for each rank."),
    Rule("NTH311", "not-exported", "warning", "A variable that is not exported reaches no task, and no script that one runs."),
    Rule("NTH314", "node-rank-missing", "error", "torchrun's default backend is static, and its default rank of a node is 0: each node waits as the first."),
    # How a job ends.
    Rule("NTH401", "exit-code-lost", "advice", "The run's exit code does not reach the script's end: a failed run ends as COMPLETED, and jobs that depend on it start. Told of trainings, steps and mpirun, else of the user's programs (by a path, or under bash, Rscript, julia and the like), each once."),
    Rule("NTH402", "background-without-wait", "error", "At the script's end Slurm ends what runs in the background. A warning for several beside a last one of their kind."),
    Rule("NTH403", "wait-for-server", "warning", "A bare wait waits for the server in the background too, beside which the work runs, as one for the server does before what stops it, and a last `tail -f` never ends, nor does a server in the foreground before other work: the job runs to its time limit."),
    Rule("NTH404", "signal-lead", "warning", "Slurm looks about every 30 s whether a signal is due."),
    Rule("NTH405", "signal-lost", "error", "Without B: only srun's tasks get it, and no trap of the script; with B: a trap alone, while srun runs in the background. A warning where there is no trap."),
    Rule("NTH406", "output-folder", "warning", "Slurm before 23.02 makes no folder for the output; a folder that the script makes comes too late.", (0.0, 23.02)),
    Rule("NTH407", "requeue-truncates", "warning", "A requeued job writes over the output of its first run."),
    Rule("NTH414", "requeue-without-end", "warning", "`|| scontrol requeue` queues a job again whose error lasts, without end: SLURM_RESTART_COUNT says how often it has been."),
    Rule("NTH408", "kill-on-bad-exit", "advice", "Without it the other tasks of a training wait for the one that failed, until they time out. A warning where the script shows that the tasks are one training; one Python program with a task for each GPU, or with MASTER_ADDR exported, counts as one."),
    Rule("NTH410", "conda-without-hook", "warning", "A batch script has no conda activate before conda's hook or conda.sh, and goes on in the wrong environment. Left alone where it reads a file, or loads a module that may bring conda, first."),
    Rule("NTH411", "array-truncates", "warning", "A file for output whose name has neither %a nor %j is truncated by each job of an array (without --open-mode=append)."),
    Rule("NTH412", "array-from-zero", "warning", "Lines of a file are counted from 1: with --array=0-20 the job of index 0 gets none (head, awk), or sed refuses it, which is an error."),
    Rule("NTH501", "container-without-gpus", "error", "Without --nv (apptainer) or --gpus (docker, podman) a container has no GPU; AMD's are left out. An error for a program that the linter was taught, else a warning."),
)  # fmt: skip
BY_NAME = {rule.name: rule for rule in RULES}

"""The table of rules, from which docs/lint-rules.md is generated."""

# ruff: noqa: E501  (a table: each rule on one line)

from typing import Literal, NamedTuple, get_args

Level = Literal["error", "warning", "advice"]
LEVELS = get_args(Level)
"""An error is certainly right, a warning probably; advice is shown only on request."""


class Rule(NamedTuple):
    """A rule with its code, its name, the level of most of its findings, and the reason why it exists."""

    code: str
    name: str
    level: Level
    why: str
    versions: tuple[float, float] | None = None
    """The first affected version of Slurm, and the first unaffected one. Reported only with a --slurm of this range."""


RULES: tuple[Rule, ...] = (
    # The form of a script and its options.
    Rule("NTH100", "unreadable-file", "error", "The file could not be read; the other files are still linted."),
    Rule("NTH102", "no-shebang", "error", "sbatch refuses a script whose first line does not begin with #!. Checked if the file has #SBATCH lines or its name ends in .sbatch, .slurm or .job."),
    Rule("NTH103", "dos-line-ends", "error", "sbatch refuses lines that end in \\r\\n."),
    Rule("NTH105", "shell-syntax", "error", "bash itself (`bash -n`, which runs nothing) cannot parse the script. In scripts of other languages (python, tcsh, R) only the options are read."),
    Rule("NTH106", "unknown-option", "error", "sbatch and srun refuse unknown options; sbatch also refuses options that only srun has."),
    Rule("NTH107", "site-option", "advice", "The option belongs to a plugin (Shifter, pyxis, uenv and others), not to sbatch itself. It is a warning if no known plugin has the option."),
    Rule("NTH110", "malformed-option", "error", "sbatch refuses words that belong to no option ('Invalid directive'), and options without their value."),
    Rule("NTH111", "typographic-dash", "error", "An en dash is not a hyphen: sbatch refuses the word, and srun tries to run it as the program."),
    Rule("NTH112", "ignored-option", "error", "sbatch reads #SBATCH lines only up to the first command, and only one `#SBATCH` per line. It is a warning if the line is misspelt or does not affect resources. `# SBATCH` is accepted as a comment if another line sets the same option or explains how to enable such lines."),
    Rule("NTH113", "placeholder", "warning", "A value, or a path in a command, is empty or still has to be filled in. One finding lists all #SBATCH lines concerned, and one all commands."),
    Rule("NTH114", "variable-in-option", "warning", "sbatch expands neither variables nor ~ in #SBATCH lines."),
    Rule("NTH115", "shebang-words", "error", "In the first line of a script, env receives everything after it as one word, and finds no program called 'bash -l'; env -S splits the words. With sbatch as the interpreter, the script submits itself endlessly."),
    Rule("NTH116", "line-as-command", "error", "A line that begins with an option is run as a command, because the previous line does not end in a backslash. A stray ~ from an editor and a variable's name before ` = ` are run as commands too."),
    Rule("NTH117", "script-folder", "warning", "Slurm runs a copy of the script from its spool folder: $0 and BASH_SOURCE point there, not to the files beside the original. Not reported if the script also uses SLURM_SUBMIT_DIR, scontrol show job or sbatch."),
    Rule("NTH120", "bad-value", "error", "sbatch refuses the value. Valid: nodes N or MIN-MAX; counts of at least 1; time as minutes, H:MM:SS or D-HH:MM:SS; memory as a whole number with K, M, G or T; GPUs as gpu:4 in --gres and 4 elsewhere; a signal as [B:]NAME[@seconds]; an array as rising ranges."),
    Rule("NTH131", "options-contradict", "error", "sbatch refuses these options together: more than one of --mem, --mem-per-cpu and --mem-per-gpu, or numbers of GPUs that contradict each other."),
    Rule("NTH132", "memory-in-megabytes", "warning", "Memory without a unit is in megabytes: --mem-per-cpu=4 is 4 MB."),
    Rule("NTH133", "repeated-option", "warning", "If an option is given twice, sbatch uses the last one: of two --constraint options, only the second takes effect."),
    Rule("NTH134", "fixed-dependency", "warning", "A job id written into a script is valid for one submission: later submissions wait for a job that has ended, or are refused."),
    Rule("NTH140", "site-partition", "error", "The site has no such partition. Needs a site file."),
    Rule("NTH141", "site-required", "error", "The site refuses a job without this option. A script without any sbatch option is not reported, because all its options may be given on the command line. Needs a site file."),
    # Tasks, launchers and GPUs.
    Rule("NTH202", "one-rank-per-gpu", "error", "srun and mpirun start one process per task (--ntasks overrides --ntasks-per-node): fewer tasks than GPUs leave GPUs idle, more tasks share them. Reported only if each task is evidently a rank. It is a warning if only variables show that, or if Python is started more often than there are GPUs."),
    Rule("NTH204", "missing-srun", "error", "Without srun, a command runs once, on the job's first node. It is a warning if the launcher does not wait for the other nodes."),
    Rule("NTH205", "idle-nodes", "warning", "srun --nodes=1 in a job of two nodes leaves one idle, unless other steps run at the same time. mpirun leaves nodes idle if it starts no more ranks than one node has tasks."),
    Rule("NTH206", "launcher-per-task", "error", "torchrun and accelerate start all workers of a node: 4 tasks × 4 workers are 16 processes on 4 GPUs."),
    Rule("NTH207", "launcher-in-launcher", "error", "mpirun in each of several tasks starts a complete run in each; so does srun in each worker of torchrun."),
    Rule("NTH208", "processes-per-node", "error", "Each worker of torchrun, accelerate and deepspeed needs a GPU. It is a warning if GPUs are left over. Without --nproc_per_node, torchrun starts one worker; accelerate's --num_processes counts the workers of all machines."),
    Rule("NTH209", "node-count", "error", "torchrun waits until as many nodes as --nnodes requests have joined."),
    Rule("NTH210", "separate-runs", "error", "With --standalone, or without --nnodes, each node starts a separate run. apptainer --cleanenv removes SLURM_* from the tasks, so each task starts a separate run."),
    Rule("NTH211", "deprecated-launcher", "advice", "torch.distributed.launch is deprecated; use torchrun."),
    Rule("NTH212", "mpi-count", "warning", "Open MPI refuses to start more processes than the job has tasks."),
    Rule("NTH214", "srun-cpus", "warning", "From Slurm 22.05 up to 23.02, srun does not inherit --cpus-per-task from the job, and binds each task to one CPU.", (22.05, 23.11)),
    Rule("NTH216", "visible-devices", "warning", "Slurm sets CUDA_VISIBLE_DEVICES to the allocated GPUs, numbered from 0. Other numbers do not exist, and an omitted GPU stays idle."),
    Rule("NTH217", "deepspeed-nodes", "error", "deepspeed reaches the nodes in its hostfile by ssh. Without a hostfile it uses only its own node, and under srun every node starts a separate run. Under srun, use --no_ssh with --node_rank."),
    Rule("NTH219", "step-takes-all", "warning", "A step without --ntasks gets all tasks of the job: simultaneous steps each start all tasks, or wait for each other."),
    Rule("NTH223", "unset-variable", "warning", "Slurm sets SLURM_GPUS only for --gpus, and SLURM_GPUS_PER_NODE only for --gpus-per-node: with --gres both are empty. SLURM_NTASKS is empty in a batch shell without --ntasks. Names that Slurm never sets, such as SLURM_CPUS_PER_NODE or SLURM_WORKING_DIR, are reported if the script neither sets nor tests them."),
    Rule("NTH224", "shell-word", "error", "srun starts programs: cd, source, export and module are shell builtins or functions, which srun cannot find or which have no effect in a task. A whole command line in quotes is not a program, nor is A=1 (also under mpirun, nohup and timeout). srun without any program is reported too."),
    # How the ranks connect.
    Rule("NTH301", "master-per-task", "error", "If each task calls hostname, each node uses a different master. As in all rules about the master, it is a warning if the program is unknown."),
    Rule("NTH302", "master-is-localhost", "error", "On each node, localhost means that node."),
    Rule("NTH303", "master-fixed", "warning", "The job may run on other nodes: its ranks then wait for a host that is not one of these nodes."),
    Rule("NTH304", "master-not-first", "error", "Rank 0 listens on the first node, not on a node picked by tail, sed -n 2p or awk NR==2. (c10d can meet on any node.)"),
    Rule("NTH305", "master-not-a-host", "error", "A node list or a list of all hosts is not a host name; the login host runs no rank."),
    Rule("NTH306", "c10d-without-endpoint", "error", "With the c10d backend, nodes meet at --rdzv_endpoint; --master_addr is for the static backend. Without an endpoint, every node looks for the other nodes on itself."),
    Rule("NTH307", "expanded-too-early", "error", "The batch shell expands $SLURM_NODEID or $SLURM_PROCID before srun starts, even in double quotes, so every task acts as task 0. It is a warning if the batch shell exports a rank (an error for PET_NODE_RANK, or if a program beside the script reads that variable), and for a variable of the job in `sbatch <<EOF`, which the submitting shell expands."),
    Rule("NTH308", "fixed-port", "warning", "Two jobs on one node collide on a fixed port. So do elements of an array that derive the port from SLURM_ARRAY_JOB_ID, and two torchrun or deepspeed launches without a port or --standalone. Not reported if the job holds whole nodes (--exclusive, --mem=0, 8 GPUs, 4 GPUs on each of several nodes, or --constraint=gpu outside a shared queue, as at NERSC), or for a MASTER_PORT that is not passed to torchrun."),
    Rule("NTH309", "port-per-task", "error", "A port chosen in each task differs from rank to rank."),
    Rule("NTH311", "not-exported", "warning", "A variable that is not exported reaches neither the tasks nor scripts that the job runs."),
    Rule("NTH313", "hosts-in-one-word", "warning", "nodes=(\"$list\") is an array with one element: its second element is empty, and a step meant for the second host runs elsewhere or hangs."),
    Rule("NTH314", "node-rank-missing", "error", "torchrun's default backend is static, and its default node rank is 0, so every node waits as if it were the first."),
    # How a job ends.
    Rule("NTH401", "exit-code-lost", "advice", "The run's exit code does not become the script's: a failed run ends as COMPLETED, and jobs that depend on it start. Reported once for each training, step and mpirun or, if there are none, for each of the user's programs (called by a path, or under bash, Rscript, julia and the like)."),
    Rule("NTH402", "background-without-wait", "error", "When the script ends, Slurm kills its background processes. It is a warning if several launches run in the background while the last launch of the same kind runs in the foreground."),
    Rule("NTH403", "wait-for-server", "warning", "The job runs to its time limit, because a server never ends. A bare wait also waits for a server in the background, as does a wait for the server's id before the command that stops the server. A final `tail -f` never ends, and neither does a server in the foreground before other work."),
    Rule("NTH404", "signal-lead", "warning", "Slurm checks only about every 30 s whether a signal is due."),
    Rule("NTH405", "signal-lost", "error", "Without B: only srun's tasks receive the signal, not the script's trap. With B: only the script's trap receives it, and only while srun runs in the background. It is a warning if there is no trap."),
    Rule("NTH406", "output-folder", "warning", "Slurm before 23.02 does not create the folder of the output; a folder created by the script comes too late.", (0.0, 23.02)),
    Rule("NTH407", "requeue-truncates", "warning", "A requeued job overwrites the output of its first run."),
    Rule("NTH408", "kill-on-bad-exit", "advice", "Without --kill-on-bad-exit, the other tasks of a training wait for a failed task until they time out. It is a warning if the script shows that the tasks are one training, such as a Python program with a task for each GPU or with MASTER_ADDR exported."),
    Rule("NTH410", "conda-without-hook", "warning", "In a batch script, conda activate fails before conda's hook or conda.sh is loaded, and the job continues in the wrong environment. Not reported if the script first sources a file or loads a module that may provide conda."),
    Rule("NTH411", "array-truncates", "warning", "Each job of an array truncates an output file whose name has neither %a nor %j (without --open-mode=append)."),
    Rule("NTH412", "array-from-zero", "warning", "Lines of a file are counted from 1: with --array=0-20, the job with index 0 gets no line from head or awk; sed refuses the number, so that is an error."),
    Rule("NTH414", "requeue-without-end", "warning", "`|| scontrol requeue` requeues a job endlessly if its error is permanent; SLURM_RESTART_COUNT counts the requeues."),
    Rule("NTH501", "container-without-gpus", "error", "Without --nv (apptainer) or --gpus (docker, podman) a container has no GPU. AMD GPUs are not checked. It is an error for a program that the linter was taught, and otherwise a warning."),
)  # fmt: skip
BY_NAME = {rule.name: rule for rule in RULES}

"""Test cases from public job scripts: right scripts that the linter reported, and faults that it overlooked."""

# ruff: noqa: E501  (tables)

from pathlib import Path

import pytest
from job_scripts import EVERYTHING

from slurm_lint.check import lint_text

JOB = Path("/nowhere/job.sbatch")
G4 = "#SBATCH --nodes=1\n#SBATCH --ntasks-per-node=1\n#SBATCH --gpus-per-node=4\n"
TWO = "#SBATCH -N2 --ntasks-per-node=4 --gpus-per-node=4\n"
EACH = TWO.replace("node=4 ", "node=1 ", 1)
RANKS = "#SBATCH -N16 --ntasks-per-node=1 --gpus-per-node=8\n"
W = "export WORLD_SIZE=$SLURM_NTASKS\n"
DEEPSPEED = "deepspeed --master_port=$((20000 + SLURM_JOB_ID % 99))"
FIRST = 'export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | {})\n'
RANK = '"{cmd}--nnodes=2 --nproc_per_node=4 --node_rank={node} --master_addr=$MASTER_ADDR t.py"'
TORCHRUN = 'torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$((20000 + SLURM_JOB_ID % 99))" t.py'


def found(text: str, name: str = "job.sbatch") -> list[tuple[str, str]]:
    return [(f.rule, f.level) for f in lint_text(text, Path("/nowhere") / name, EVERYTHING)[0]]


RIGHT = {  # name: (options, body); the linter must find nothing
    "equals-signs-of-tests-and-numbers": ("#SBATCH -n1\n", "((A = 5))\nlet 'B = 3'\n[[ $A = 5 ]] && test B = 3\nawk 'BEGIN { a = 3 }'\nC=$((A = 3)) python t.py"),
    "equals-signs-of-messages": ("#SBATCH -n1\n", "echo \"=> begin\"\nprintf '=%.0s' {1..80}\necho = x\nname =3"),
    "what-a-here-document-begins-with-is-not-known": ("", "cat > job.sh <<EOF\n$HEADER\n#SBATCH -n1\nhostname\nEOF\ncat >> job.sh <<EOF\n#SBATCH -n1\nEOF\ncat <<EOF\nA job:\n#SBATCH -n1\nEOF\nsbatch job.sh"),
    "assignments-that-a-shell-or-env-reads": ("#SBATCH -n1\n", "set -e\nA=1 python a.py\ntime A=1 python b.py\nsrun -n1 env A=1 python c.py"),
    "an-environment-that-is-told-first": ("#SBATCH -n1\n", "python -m torch.utils.collect_env\npython t.py"),
    "servers-beside-the-work": (G4, "ollama serve &\nserver=$!\npython t.py --tensorboard\ncode=$?\nkill $server\nexit $code"),
    "a-server-that-is-the-work": (G4, "vllm serve model --tensor-parallel-size 4"),
    "lines-with-a-blank-that-are-off": ("#SBATCH -n1\n# NOTE: to activate an option, remove the whitespace\n# SBATCH --partition=gpu\n", "python t.py"),
    "folders-removed-at-the-end": ("#SBATCH -n1\n", "set -e\npython t.py\nrmdir $T || echo left"),
    "mail-of-two-types": ("#SBATCH -n1 --time=1:00\n#SBATCH --mail-type=END\n#SBATCH --mail-type=FAIL --time=1:00\n", "python t.py"),
    "tail-that-ends-with-the-program": ("#SBATCH -n1\n", "python t.py > out.log &\npid=$!\ntail -f --pid=$pid out.log"),
    "log-of-a-file-that-is-read": ("#SBATCH -n1\n", "source helpers.sh\nlog start\ndate"),
    "status-that-a-loop-keeps-for-the-end": ("#SBATCH -n1\n", "python t.py &\nPID=$!\nSTATUS=0\nwait $PID; STATUS=$?\nwhile kill -0 $PID; do wait $PID; STATUS=$?; done\nexit $STATUS"),
    "conda-of-a-module": ("#SBATCH -n1\n", "module load cuda/12 miniforge3\nconda activate torch\npython t.py"),
    "an-option-that-is-called-path-to": ("#SBATCH -n1 --output=LOGS\n", "python t.py --path_to_data=d/path_to_x $D/path_to_y"),
    "a-solver-under-set-e": ("#SBATCH -n1\n", "set -e\nRscript fit.R\ndate"),
    "solvers-under-set-e": ("#SBATCH -n4\n", "set -e\nmpirun gmx_mpi mdrun -deffnm nvt\nmpirun gmx_mpi mdrun -deffnm npt"),
    "code-kept-in-a-shell-inside": (G4, "srun -n1 bash -ec 'python t.py; python report.py'"),
    "code-kept-by-a-shell-inside-itself": (G4, "srun -n1 bash -c \"python t.py; code=\\$?; rm -f core.*; exit \\$code\""),
    "code-of-the-last-program-in-a-shell-inside": (G4, "srun -n1 bash -c 'source env; cd /w; exec python t.py'"),
    "a-step-that-may-fail-before-the-work": (G4, "srun ray stop --force || true\nsrun -n1 ray stop"),
    "an-address-in-angles": ("#SBATCH -n1\n#SBATCH --mail-user=<ada.lovelace@uni.edu>\n", "hostname"),
    "gnu-parallel-on-two-nodes": (EACH, "set -e\nparallel --sshloginfile hosts python a.py ::: 1 2\npython b.py"),
    "braces-of-bash": ("#SBATCH -n1\n", "set -e\nexec {fd}>log\nfind . -name x -exec rm {} +\ngit reset @{u}\nparallel echo {1} ::: a b\nawk '{print}' log\npython t.py a{b,c} \"${d}\"{e,f}"),
    "ray-head-behind-the-work": (EACH, 'nodes=($(scontrol show hostnames "$SLURM_JOB_NODELIST"))\nsrun -N1 -n1 -w "${nodes[0]}" ray start --head --block &\nsleep 10\nsrun -N1 -n1 -w "${nodes[1]}" ray start --address "${nodes[0]}:6379" --block &\nsleep 5\npython tune.py'),
    "vllm-server-with-the-work-in-front": (G4, "vllm serve model --tensor-parallel-size 4 > server.log 2>&1 &\nserver=$!\npython evaluate.py\ncode=$?\nkill $server\nexit $code"),
    "sglang-server-killed-by-a-trap": (G4, "python -m sglang.launch_server --tp 4 &\ntrap 'kill %1' EXIT\npython evaluate.py"),
    "spark-master": ("#SBATCH -N2 --ntasks-per-node=1\n", "start-master.sh\nsrun start-worker.sh spark://$(hostname):7077 &\nspark-submit job.py"),
    "gpu-monitor": (G4, "nvidia-smi -l 60 > gpu.log &\nmonitor=$!\nset -e\ntorchrun --standalone --nproc_per_node=4 t.py\nkill $monitor"),
    "usage-line": ("#SBATCH -n1\n", "# Usage:\n#   sbatch --nodes 3 --gres=gpu:4 job.sh t.py\npython t.py"),
    "usage-line-in-capitals": ("#SBATCH -n1\n", "# SBATCH --nodes 3 job.sh\npython t.py"),
    "disabled-option": ("#SBATCH -n1\n##SBATCH --nodes=4\n### SBATCH --gres=gpu:8\n# #SBATCH --gpus=2\n", "python t.py"),
    "amd-by-gres": ("#SBATCH --gres=gpu:mi250:8 -n1\n", "srun singularity exec torch.sif python t.py"),
    "amd-by-image": ("#SBATCH --gpus-per-node=8 -N1\n", "SIF=/appl/lumi-pytorch-rocm-6.2.sif\nsrun singularity exec $SIF bash -c 'python t.py'"),
    "amd-by-option": ("#SBATCH --gpus-per-node=1\n", "apptainer exec --rocm torch.sif python t.py"),
    "amd-by-variable": ("#SBATCH --gpus-per-node=2\n", "export ROCR_VISIBLE_DEVICES=0,1\nsingularity exec torch.sif python t.py"),
    "one-process-for-all-gpus": (G4, "srun python serve.py --tensor-parallel-size 4"),
    "jax-on-all-gpus": (G4, "python train_jax.py"),
    "tensorflow-mirrored": ("#SBATCH -N1 -n1 --gres=gpu:8\n", "python mnist_classify.py"),
    "ntasks-per-gpu": ("#SBATCH -N1 --gpus-per-node=4 --ntasks-per-gpu=1\n", W + "srun -K python t.py"),
    "gpu-bind-single": ("#SBATCH -N1 --ntasks-per-node=8 --gpus-per-node=4 --gpu-bind=single:2\n", W + "srun -K python t.py"),
    "tasks-of-the-step": ("#SBATCH -N2 --gpus-per-node=4\n", "export WORLD_SIZE=8\n" + "srun -K -n8 --ntasks-per-node=4 python t.py"),
    "hpo-driver": ("#SBATCH -N4 --ntasks-per-node=4\n", "python -m hpo.run --workers 16"),
    "scoop": ("#SBATCH -N2 --ntasks-per-node=16\n", "python -m scoop -n 32 t.py"),
    "parsl": ("#SBATCH -N2 --ntasks-per-node=1\n", "python parsl_flow.py"),
    "dask": ("#SBATCH -n32 -N4\n", "srun dask-mpi --scheduler-file s.json &\nsleep 30\npython t.py"),
    "master-by-sed": (TWO, FIRST.format("sed -n 1p") + W + "srun -K python t.py"),
    "master-by-awk": (TWO, FIRST.format("awk '{print $1; exit}'") + W + "srun -K python t.py"),
    "master-by-cut": (TWO, "hosts=$(scontrol show hostnames $SLURM_JOB_NODELIST | tr '\\n' ' ')\n" + "export MASTER_ADDR=$(echo $hosts | cut -d' ' -f1)\n" + W + "srun -K python t.py"),
    "master-by-perl": (TWO, "export MASTER_ADDR=$(perl -e '$_=$ENV{SLURM_JOB_NODELIST}; s/\\[(\\d+).*/$1/; print')\n" + W + "srun -K python t.py"),
    "master-by-hostlist": (TWO, "export MASTER_ADDR=$(hostlist -e $SLURM_JOB_NODELIST | head -1)\n" + W + "srun -K python t.py"),
    "master-is-the-batch-shell-s-host": (TWO, "export MASTER_ADDR=$(hostname)\n" + W + "srun -K python t.py"),
    "endpoint-by-an-array": (EACH, 'nodes=( $( scontrol show hostnames $SLURM_JOB_NODELIST ) )\nnodes_array=($nodes)\nhead=${nodes_array[0]}\nMASTER_ADDR=$(srun -N1 -n1 -w "$head" hostname --ip-address)\nsrun -K ' + TORCHRUN),
    "exclusive-and-a-fixed-port": (TWO + "#SBATCH --exclusive\n", FIRST.format("head -n 1") + "export MASTER_PORT=29500\n" + W + "srun -K python t.py"),
    "shared-gpus-allowed": ("#SBATCH -N1 --ntasks-per-node=4 --gpus-per-task=1 --gres-flags=allow-task-sharing\n", W + "srun -K python t.py"),
    "gpus-of-another-step": (G4.replace("node=1\n", "node=4\n", 1), "set -e\nsrun --ntasks=2 --gpus=2 python a.py &\nsrun --ntasks=2 --gpus=2 python b.py &\nwait $!"),
    "set-that-lists-the-variables": ("#SBATCH -n1\n", "set > variables.txt\npython t.py"),
    "exit-before-the-work": ("#SBATCH -n1\n", "hostname\nexit\ntorchrun --nnodes=4 --nproc_per_node=8 t.py\necho done"),
    "here-document-to-a-program": ("#SBATCH -n1\n", "cat > conf.yaml <<EOF\n#SBATCH is not here\nMASTER_ADDR=localhost\nEOF\npython t.py"),
    "srun-options-after-a-blank": (EACH, "ARGS=(\n    --container-image image.sqsh\n    --container-mounts /data\n)\n" + FIRST.format("head -n 1") + 'srun -K -l "${ARGS[@]}" ' + TORCHRUN),
    "shifter": (EACH, FIRST.format("head -n 1") + "srun -K shifter --image nersc/pytorch:24 --module gpu " + TORCHRUN),
    "nsys": (EACH, FIRST.format("head -n 1") + "srun -K nsys profile --sample none --output report --force-overwrite true " + TORCHRUN),
    "srun-in-a-loop": (TWO, "for seed in 1 2 3; do\n    srun -K -N1 -n4 python t.py --seed $seed\ndone"),
    "node-count-chosen-by-a-branch": (EACH, 'if [ "$1" = big ]; then N=4; else N=2; fi\n' + FIRST.format("head -n 1") + 'srun -K torchrun --nnodes=$N --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint="$MASTER_ADDR:$((20000 + SLURM_JOB_ID % 99))" t.py'),
    "code-kept-by-a-trap": ("#SBATCH -n1\n", "trap 'exit 1' ERR\npython t.py\necho done"),
    "rank-of-accelerate-in-each-task": (EACH, "srun -K bash -c 'accelerate launch --num_machines 2 --num_processes 8 --machine_rank $SLURM_NODEID --main_process_ip '$(hostname)' t.py'"),
    "code-kept-by-set-e-in-a-function": ("#SBATCH -n1\n", "set -euo pipefail\nmain() {\n    python t.py | tee log\n    echo done\n}\nmain"),
    "pipestatus": ("#SBATCH -n1\n", "python t.py | tee log\nexit ${PIPESTATUS[0]}"),
    "cpu-bind-with-an-underscore": (TWO, "srun -K --cpu_bind=cores python t.py"),
    "script-of-another-shell": ("#SBATCH -n1\n", "cat <<EOF | python -\nprint('{')\nEOF"),
    "nsys-with-all-its-options-after-blanks": (TWO, "srun -K nsys profile --kill none --cuda-graph-trace node -c cudaProfilerApi -f true -tcuda --stats=true python t.py"),
    "two-options-that-name-the-same-port-per-job": (EACH, FIRST.format("head -n 1") + "export MASTER_PORT=$((20000 + SLURM_JOB_ID % 99))\nsrun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT t.py"),
    "mpibind-of-a-plugin": ("#SBATCH -n1\n", "srun --mpibind=off python t.py"),
    "a-fixed-port-on-a-node-of-nersc": (G4 + "#SBATCH --constraint=gpu&hbm80g\n#SBATCH --qos=regular\n", "torchrun --nproc_per_node=4 --master_port=29501 t.py"),
    "a-fixed-port-on-four-gpus-of-each-node": (EACH, FIRST.format("head -n 1") + "srun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29500 t.py"),
    "workers-that-a-command-counts-in-a-shell-inside": (G4, "N=$(echo \"$RAW\" | awk -F'[( ]' '{print $1}')\nsrun bash -c \"torchrun --nproc_per_node=$N --rdzv_backend=c10d --rdzv_endpoint=localhost:0 t.py\""),
    "default-port-on-whole-nodes": (G4.replace("node=4", "node=8"), "torchrun --nproc_per_node=8 t.py"),
    "tasks-of-mpi-that-share-a-gpu": ("#SBATCH -n8 --gres=gpu:1\n", "srun --mpi=pmix python solve.py"),
    "path-in-a-message": ("#SBATCH -n1\n", 'DATA="${1:?sbatch job.sh /path/to/data}"\necho "see /path/to/log"\npython t.py "$DATA"'),
    "helper-under-srun": ("#SBATCH -n2 -c8\n", "srun hostname"),
    "gpu-types-that-begin-with-a-digit": ("#SBATCH --gres=gpu:2080ti:4\n", "torchrun --standalone --nproc_per_node=4 t.py"),
    "slice-of-a-gpu": ("#SBATCH --gpus=1g.5gb:1\n", "python t.py"),
    "escaped-in-a-variable": (EACH, FIRST.format("head -n 1") + "CMD=" + RANK.format(cmd="torchrun ", node="\\$SLURM_NODEID") + '\nsrun -K bash -c "$CMD"'),
    "escaped-in-a-part-of-a-variable": (EACH, FIRST.format("head -n 1") + "DIST=" + RANK.format(cmd="", node="\\$SLURM_NODEID") + '\nCMD="torchrun $DIST"\nsrun -K bash -c "$CMD"'),
    "single-quotes-in-a-variable": (EACH, FIRST.format("head -n 1") + "CMD=" + RANK.format(cmd="torchrun ", node="$SLURM_NODEID").replace('"', "'") + '\nsrun -K bash -c "$CMD"'),
    "escaped-hostname-for-the-batch-shell": (TWO, 'CMD="export MASTER_ADDR=$(hostname) WORLD_SIZE=8; exec python t.py"\nsrun -K bash -c "$CMD"'),
    "one-worker-that-is-asked-for": (G4, "torchrun --standalone --nproc_per_node=1 t.py"),
    "workers-by-a-word": (G4, "torchrun --standalone --nproc_per_node=gpu t.py"),
    "deepspeed-on-all-gpus": (G4, f"{DEEPSPEED} t.py"),
    "deepspeed-on-chosen-gpus": (G4, f"{DEEPSPEED} --include localhost:0,1 t.py"),
    "deepspeed-on-nodes-held-whole": (G4 + "#SBATCH --exclusive\n", "deepspeed t.py"),
    "hosts-for-mpirun": ("#SBATCH -n4\n", "srun hostname -s | sort -n > hosts\nmpirun -np 4 -machinefile hosts ./solver"),
    "server-that-is-to-serve": (G4, "set -e\nvllm serve model &\nserver=$!\npython register.py\nwait $server"),
    "server-that-is-ended-before-its-wait": (G4, "set -e\nvllm serve model &\nserver=$!\npython ask.py\nkill $server\nwait $server || true\npkill -P $$"),
    "program-by-a-path-with-a-blank": ("#SBATCH -n1\n", 'srun "./my solver" input'),
    "flag-of-pyxis-before-the-program": ("#SBATCH -n1\n", "srun --container-image=a.sqsh --no-container-mount-home python t.py"),
    "accelerate-counts-all-machines": (EACH, FIRST.format("head -n 1") + "srun -K bash -c 'accelerate launch --num_machines 2 --num_processes 8 --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR t.py'"),
    "accelerate-on-the-cpu": (G4, "accelerate launch --cpu --num_processes 8 t.py"),
    "one-task-a-node-that-may-spawn": (EACH, FIRST.format("head -n 1") + "srun -K python t.py"),
    "gpus-shared-by-a-flag": ("#SBATCH -N1 --ntasks-per-node=8 --gpus-per-node=4 --gres-flags=multiple-tasks-per-sharing\n", W + "srun -K python t.py"),
    "static-with-its-node-rank": (EACH, FIRST.format("head -n 1") + "srun -K bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$SLURM_NODEID --master_addr=$MASTER_ADDR t.py'"),
    "static-with-the-node-rank-of-the-environment": (EACH, FIRST.format("head -n 1") + "srun -K bash -c 'export PET_NODE_RANK=$SLURM_NODEID; torchrun --nnodes=2 --nproc_per_node=4 --master_addr=$MASTER_ADDR t.py'"),
    "deepspeed-with-a-hostfile": (EACH, "deepspeed --hostfile hosts t.py"),
    "deepspeed-once-per-node-without-ssh": (EACH, "srun -K bash -c 'deepspeed --no_ssh --node_rank=$SLURM_NODEID t.py'"),
    "rank-in-single-quotes": (TWO, FIRST.format("head -n 1") + "srun -K bash -c 'export RANK=$SLURM_PROCID LOCAL_RANK=$SLURM_LOCALID; exec python t.py'"),
    "rank-escaped-in-double-quotes": (TWO, FIRST.format("head -n 1") + 'srun -K bash -c "export RANK=\\$SLURM_PROCID; exec python t.py"'),
    "rank-of-a-job-of-one-task": ("#SBATCH -n1\n", "srun python t.py --rank $SLURM_PROCID"),
    "steps-with-a-share-each": ("#SBATCH -n4\n", "for i in 1 2 3 4; do\n    srun -n1 --exact ./solver $i &\n    pids+=($!)\ndone\nwait ${pids[@]}"),
    "step-of-fewer-tasks-than-nodes": ("#SBATCH -n1\n", "srun -N2 ./solver"),
    "node-option-of-the-program": ("#SBATCH -n4\n", "srun ./solver --nodes=4 --time=3"),
    "code-read-without-set-e": ("#SBATCH -n1\n", "set -e\nmodule load x\nset +e\npython t.py\ncode=$?\nrm -f x\nexit $code"),
    "code-kept-by-or": ("#SBATCH -n1\n", "set -e\ncode=0\npython t.py || code=$?\nrm -f x\nexit $code"),
    "code-that-decides": ("#SBATCH -n1\n", "python t.py\ncode=$?\nif [ $code -eq 3 ]; then sbatch again.sh; fi\nexit $code"),
    "conda-behind-its-file": ("#SBATCH -n1\n", "source ~/miniconda3/etc/profile.d/conda.sh\nconda activate torch\npython t.py"),
    "conda-behind-a-module": ("#SBATCH -n1\n", "module load anaconda\nconda activate torch\npython t.py"),
    "port-of-each-job-of-an-array": (TWO + "#SBATCH --array=0-3\n", FIRST.format("head -n 1") + "export MASTER_PORT=$((20000 + (SLURM_ARRAY_JOB_ID + SLURM_ARRAY_TASK_ID) % 999))\nsrun -K python t.py"),
    "memory-by-unit": ("#SBATCH --mem-per-cpu=200M\n#SBATCH -n1\n", "python t.py"),
    "all-memory": ("#SBATCH --mem=0\n", "python t.py"),
    "trap-and-a-solver-in-the-background": ("#SBATCH -n4 --signal=B:USR1@120\n", "trap 'touch stop' USR1\nsrun ./solver &\nwait $!\nwait $!"),
    "option-in-quotes": ("#SBATCH -n1\n", 'echo "use\n#SBATCH --nodes=4\n" > usage.txt\npython t.py'),
    "option-in-single-quotes": ("#SBATCH -n1\n", "awk '\n#SBATCH --nodes=4\n{ print }' log\npython t.py"),
    "spaced-option-beside-another-of-its-kind": ("#SBATCH --gpus-per-node=4\n# SBATCH --gres=gpu:8\n# SBATCH --gres=gpu:1\n", "hostname"),
    "spaced-memory-beside-another-of-its-kind": ("# SBATCH --mem=4G\n#SBATCH --mem-per-cpu=1G\n", "hostname"),
    "spaced-options-of-which-one-is-to-be-chosen": ("#SBATCH -n1\n# SBATCH --partition=gpu\n# SBATCH --partition=cpu\n", "hostname"),
    "options-put-aside-below-the-last-command": ("#SBATCH -n1\n", "hostname\n# SBATCH --nodes=4"),
    "comment-that-says-how-to-start-more": ("#SBATCH -N1 --gpus-per-node=8\n# On 4 nodes x 8 GPUs: sbatch --nodes=4 job.sh\n", "hostname"),
    "port-drawn-once-in-a-variable": (EACH, FIRST.format("head -n 1") + "PORT=$(shuf -i 6000-7000 -n 1)\nCMD=" + RANK.format(cmd="torchrun --master_port=$PORT ", node="\\$SLURM_NODEID") + '\nsrun -K bash -c "$CMD"'),
    "gpus-that-slurm-counts-for-gpus-alone": ("#SBATCH -n1 --gres=gpu:4\n", "torchrun --standalone --nproc_per_node=$((SLURM_GPUS * 2)) t.py"),
    "ignored-signal": ("#SBATCH -N1 --ntasks-per-node=2 --signal=USR1@120\n", "trap '' USR1\nsrun python t.py"),
    "a-port-that-torchrun-does-not-read": (G4, "export MASTER_PORT=29500\ntorchrun --standalone --nproc_per_node=4 t.py"),
    "a-fixed-port-on-eight-gpus": (EACH.replace("gpus-per-node=4", "gpus-per-node=8"), FIRST.format("head -n 1") + "export MASTER_PORT=29500\nsrun -K torchrun --nnodes=2 --nproc_per_node=8 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT t.py"),
    "a-fixed-port-with-all-memory": (EACH + "#SBATCH --mem=0\n", FIRST.format("head -n 1") + "srun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:29500 t.py"),
    "a-command-that-grows-in-an-if": (EACH, FIRST.format("head -n 1") + f"CMD='{TORCHRUN}'\nif [ -n \"$1\" ]; then\n  CMD=\"$CMD --resume $1\"\nfi\nsrun -K $CMD"),
    "a-rank-that-each-task-sets": (TWO, FIRST.format("head -n 1") + W + "export RANK=$SLURM_PROCID\nsrun -K bash -c 'export RANK=$SLURM_PROCID; exec python t.py'"),
    "a-wait-that-keeps-the-code": (G4, "torchrun --standalone --nproc_per_node=4 t.py &\npid=$!\nwait $pid || code=$?\nexit ${code:-0}"),
    "an-option-in-a-case-and-an-array": ("#SBATCH -n1\n", "case $1 in\n  -n|--name) shift;;\nesac\nargs=(\n  --a 1\n  -b\n)\npython t.py \"${args[@]}\""),
    "a-backslash-at-the-very-end": (G4, "torchrun --standalone --nproc_per_node=4 t.py \\\n  --lr 1 \\"),
    "a-helper-that-may-fail-before-the-work": (G4, "python warm.py || true\ntorchrun --standalone --nproc_per_node=4 t.py"),
    "a-fixed-port-of-a-step-with-eight-gpus": ("#SBATCH -N2\n", FIRST.format("head -n 1") + "export MASTER_PORT=29500\nsrun -K -N2 -n16 --gpus-per-task=1 python t.py"),
    "a-number-of-workers-that-a-list-may-change": (G4, 'N=${SLURM_GPUS_ON_NODE:-2}\n[[ "$N" -lt 1 ]] && N=1\ntorchrun --standalone --nproc_per_node=$N t.py'),
    "variables-that-the-batch-shell-puts-between-single-quotes": (EACH, "DATA=/data\nsrun bash -c 'ls '\"$DATA\"' $SLURM_NODEID'"),
    "a-variable-that-the-inner-shell-sets": (EACH, "SEED=1\nsrun bash -c 'for SEED in 1 2; do ./solver $SEED; done'"),
    "a-variable-that-an-option-hands-on": (EACH, "DATA=/data\nsrun --export=ALL,DATA=$DATA bash -c './solver $DATA'"),
    "tasks-as-the-step-counts-them": ("#SBATCH -N2\n", "srun bash -c './solver $SLURM_NTASKS'"),
    "the-script-s-own-folder-outside-a-job": ("#SBATCH -n1\n", 'cd "${SLURM_SUBMIT_DIR:-$(dirname "$0")}"\npython t.py'),
    "long-form-of-clusters": ("#SBATCH --cluster genius\n", "hostname"),
    "all-tasks-beside-a-step-with-its-share": ("#SBATCH -n4\n", "srun -n1 --overlap ./reader &\nreader=$!\nsrun --overlap ./writer &\nwait $! && wait $reader"),
    "rank-that-the-shell-of-each-task-keeps": (EACH, FIRST.format("head -n 1") + 'srun -K bash -c "ARGS=\\"--node_rank=\\$SLURM_PROCID --master_addr=\\$MASTER_ADDR\\"\ntorchrun --nnodes=2 --nproc_per_node=4 \\$ARGS t.py"'),
    "mpirun-that-spreads-its-ranks": ("#SBATCH -N2 --ntasks-per-node=3\n", "mpirun -np 2 -npernode 1 ./solver"),
    "time-that-the-comment-says": ("#SBATCH --time=2-00:00:00 # 48 hours, or 2 days\n#SBATCH --signal=B:TERM@3600 # 1 hour before\n", "trap 'touch x' TERM\npython t.py &\nwait $!"),
    "time-of-which-the-comment-says-the-most": ("# at most 48 hours here\n#SBATCH --time=04:00:00\n", "hostname"),
    "loop-at-the-end": ("#SBATCH -n1\n", "for i in 1 2; do\n    python t.py $i\ndone"),
    "rank-escaped-for-a-shell-that-sets-it": (EACH, FIRST.format("head -n 1") + "N=8\n" + 'srun -K bash -c "N=\\$SLURM_NODEID; ' + RANK[1:-1].format(cmd="torchrun ", node="\\$N") + '"'),
    "rank-of-accelerate-that-c10d-does-not-read": (EACH, FIRST.format("head -n 1") + 'CMD="cd run; accelerate launch --num_machines 2 --num_processes 8 --machine_rank $SLURM_NODEID --rdzv_backend c10d --main_process_ip $MASTER_ADDR"\nsrun -K bash -c "$CMD t.py"'),
    "tasks-that-share-nothing": ("#SBATCH -n4\n", "srun python t.py"),
    "steps-of-one-gpu-each-in-a-loop": (TWO, "for i in 1 2; do\n    srun python t.py $i\ndone"),
    "torchrun-by-its-path": (EACH, FIRST.format("head -n 1") + "srun -K python $(which torchrun) " + TORCHRUN.removeprefix("torchrun ")),
    "a-port-that-no-launcher-is-given": (G4, 'export MASTER_PORT=${MASTER_PORT:-29500}\necho "port $MASTER_PORT"\naccelerate launch --num_processes 4 t.py'),
    "a-port-that-torchrun-is-not-given-but-has-a-default": (G4, "export MASTER_PORT=${MASTER_PORT:-29500}\ntorchrun --standalone --nproc_per_node=4 t.py"),
    "tasks-of-a-node-that-slurm-was-not-asked-for": ("#SBATCH -N1 -n1 --gres=gpu:4\n", "N=${SLURM_NTASKS_PER_NODE:-4}\naccelerate launch --num_processes $N t.py"),
    "a-driver-that-is-told-of-its-tasks": ("#SBATCH -N2 --ntasks=64 --ntasks-per-node=32\n", "python campaign.py siesta 64"),
    "a-usage-in-a-default": ("#SBATCH -n1\n", 'CONFIG=${1:?usage: sbatch job.sh <config>}\necho "needs <config>\n<data>"\npython t.py $CONFIG'),
    "a-redirection-from-a-file": ("#SBATCH -n1\n", "set -e\nsort <names >sorted\nsort <names> sorted\nsort <names -u> sorted\nawk '{ print \"<b>\" }' <names>\"$OUT\"\npython t.py <in>out.txt"),
    "minutes-that-a-signal-comes-before-the-end": ("#SBATCH --time=1:00:00\n#SBATCH --signal=USR1@600 # 10 minutes before the end\n", "srun python t.py"),
    "gpus-of-all-nodes-after-a-comma": (TWO + "# 2 nodes, 8 GPUs\n", "hostname"),
    "a-gpu-for-each-of-two-programs": (G4, "set -e\nexport CUDA_VISIBLE_DEVICES=0,1\npython a.py\nexport CUDA_VISIBLE_DEVICES=2,3\npython b.py"),
    "what-starts-a-service": ("#SBATCH -n1\n", "/opt/next/start\nwhile true; do sleep 60; done"),
    "a-function-before-the-end": ("#SBATCH -n1\n", "begin() { mkdir -p run; }\nbegin\nhostname"),
    "a-helper-beside-the-program": ("#SBATCH -n1\n", "python actor.py &\nnextpipe run a"),
    "an-account-like-a-placeholder": ("#SBATCH -n1 -A project_465000863 -p projects --qos=usergroup\n", "hostname"),
    "an-array-that-appends": ("#SBATCH --array=0-4 --output=a.out --open-mode=append\n", "hostname"),
    "an-array-without-output": ("#SBATCH --array=0-4%2 --output=/dev/null --error=%A_%a.err\n", "hostname"),
    "an-array-of-one": ("#SBATCH --array=3 --output=a.out\n", "hostname"),
    "a-list-in-brackets": ("#SBATCH -n1 --constraint=[ivb|hsw]\n", "python t.py tags=[base] \"names=[run_id]\""),
    "an-environment-that-is-made-where-it-lacks": ("#SBATCH -n1\n", "if [ ! -d env ]; then\n  python3 -m venv env\n  pip install -r a.txt\nfi\npython t.py"),
    "a-plain-exit-behind-the-program": ("#SBATCH -n1\n", "python t.py\n\nexit"),
    "disbatch-starts-the-steps": ("#SBATCH -N2\n", "python run_disbatcher.py"),
    "a-value-with-two-variables": ("#SBATCH -n1\n", "for n in a b; do\n  log=$D/run_$n.log\n  echo $log\ndone"),
    "a-gpu-by-its-name-alone": ("#SBATCH -n1 --gpus=geforce\n", "hostname"),
    "a-program-beside-the-script-at-the-end": ("#SBATCH -n1\n", "make\n./solver"),
    "a-second-less-than-a-day": ("#SBATCH --time=23:59:59  # one run, 24 hours\n", "python t.py"),
    "code-that-is-told-at-once": ("#SBATCH -n1\n", "echo begin\npython t.py; echo \"ended with $?\"\nexit 1"),
    "a-module-beside-its-flag": (TWO, "srun python -m noether run --module=pkg.train --lr $LR seed=a"),
    "one-task-of-noether-a-node": (EACH, "srun entrypoint.py run train.py"),
    "two-components-of-a-step": ("#SBATCH -n4 --gpus-per-node=4 -c1\n" + W, "srun -n1 --mem=1G ./a : -n3 --mem-per-cpu=1G python b.py"),
    "two-programs-of-mpirun-on-two-nodes": ("#SBATCH -N2 --ntasks-per-node=2\n", "mpirun -n 1 ./a : -n 3 ./b"),
    "lines-counted-from-one-and-variables-of-slurm-or-a-site": ("#SBATCH -n1 --array=0-9\n", 'ID=$((SLURM_ARRAY_TASK_ID + 1))\ncd $SLURM_TMPDIR\npython t.py $(sed -n "${ID}p" f) $(head -n $ID f | tail -1) ${SLURM_NUM_NODES:-1} $SLURM_JOB_NODELIST_HET_GROUP_0 $SLURM_UMASK'),
    "what-is-not-the-work-of-a-job": ("#SBATCH -n1\n", "seq 1 9 | sort -r > n\npython t.py --help | head\nfor f in *; do\n  [ -d $f ] && continue\ndone\nkillall node\nray stop\nsleep infinity"),
    "programs-under-a-path-of-the-system": ("#SBATCH -n1\n", "/usr/bin/sort a > b\n./setup.sh\nperl -ne print b\nsrun python -c 'import a'\nsrun bash -c 'echo $HOME'\ncurl a | sh\ndate"),
    "work-that-a-wait-names-beside-a-server": ("#SBATCH -n1\n", "ollama serve &\nserver=$!\npython t.py &\nwork=$!\nwait $work\ncode=$?\nkill $server\nwait\nexit $code"),
    "a-server-and-what-its-users-meet": ("#SBATCH --gpus=1\n", "trap 'exit 1' ERR\nvllm serve model &\npython app.py &\nwait"),
    "servers-that-return": (G4, "set -e\nray start --head\nray start --address=a &\ntimeout 60 tensorboard --logdir a &\npython t.py --monitor=loss\nwait"),
    "the-beginnings-of-torchrun-s-flags": (EACH, FIRST.format("head -n 1") + TORCHRUN.replace("torchrun", "srun -K torchrun").replace("rdzv_endpoint=", "rdzv_endpoin ")),
    "what-is-looked-for-or-given-from-outside": ("#SBATCH -n1\n", 'command -v srun > /dev/null || exit 1\n[ -n "$given" ] && python t.py --a $given'),
    "a-run-that-is-queued-again-three-times": ("#SBATCH -n1 --open-mode=append\n", '[ $SLURM_RESTART_COUNT -lt 3 ] && python t.py || scontrol requeue $SLURM_JOB_ID'),
    "a-container-that-runs-already": ("#SBATCH --gpus=1\n", "docker exec box python t.py"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "body"), RIGHT.values(), ids=RIGHT.keys())
def test_what_is_right_is_left_alone(options: str, body: str) -> None:
    assert found(f"#!/bin/bash\n{options}{body}\n") == []


@pytest.mark.parametrize(
    "prose",
    [
        "Use sbatch --nodes=2 with 8 GPUs each.",
        "On 4 nodes, 8 GPUs: 12 h, 16 GPUs: 7 h.",
        "2 nodes of 8 GPUs and 64 CPUs = 1 job.",
        "Use #SBATCH --time=2h, or 4 nodes x 4 A100 = 640 GB.",
    ],
)
def test_prose_in_a_readme_is_left_alone(prose: str) -> None:
    assert found(f"# Training\n\n{prose}\n", "README.md") == []


ADVICE, WARNS, FAILS = "advice", "warning", "error"
WRONG = {  # name: (options, body, the one finding)
    "srun-of-a-command-in-a-variable": (TWO, 'CMD="torchrun --nproc_per_node=4 --nnodes=2 t.py"\nsrun -K bash -c "$CMD"', ("launcher-per-task", FAILS)),
    "code-lost-by-a-last-command-of-any-name": ("#SBATCH -n1\n", "python t.py\n./collect --results", ("exit-code-lost", ADVICE)),
    "code-lost-in-a-subshell-and-a-pipe": ("#SBATCH -n1\n", "( cd run && python t.py ) |& tee log", ("exit-code-lost", ADVICE)),
    "code-lost-in-an-if": ("#SBATCH -n1\n", 'if [ -n "$1" ]; then\n    python t.py $1\n    date\nfi', ("exit-code-lost", ADVICE)),
    "code-lost-in-a-function-in-the-background": ("#SBATCH -n1\n", "work() { python t.py; }\nwork &\nwait", ("exit-code-lost", ADVICE)),
    "code-lost-in-spite-of-a-trap": ("#SBATCH -n1\n", "trap 'rm -rf $TMPDIR/x' EXIT\npython t.py\necho done", ("exit-code-lost", ADVICE)),
    "rank-of-accelerate-expanded-too-early": (EACH, "srun -K accelerate launch --num_machines 2 --num_processes 8 --machine_rank $SLURM_NODEID --main_process_ip $(hostname) t.py", ("expanded-too-early", FAILS)),
    "code-lost-in-a-loop": ("#SBATCH -n1\n", "for i in 1 2; do\n    python t.py $i\n    rm -f core.*\ndone", ("exit-code-lost", ADVICE)),
    "c10d-and-a-master-address": (EACH, FIRST.format("head -n 1") + "srun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --master_addr=$MASTER_ADDR t.py", ("c10d-without-endpoint", FAILS)),
    "array-of-one-quoted-list": (TWO, 'list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\nnodes=("$list")\nexport MASTER_ADDR=${nodes[0]}\n' + W + "srun -K python t.py", ("master-not-a-host", FAILS)),
    "array-of-one-quoted-list-by-way-of-a-name": (TWO, 'list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\nnodes=("$list")\nhead=${nodes[0]}\nexport MASTER_ADDR=$head\n' + W + "srun -K python t.py", ("master-not-a-host", FAILS)),
    "cpus-that-srun-does-not-inherit": (TWO + "#SBATCH --cpus-per-task=8\n", "srun -K python t.py", ("srun-cpus", WARNS)),
    "cpus-of-an-openmp-program": ("#SBATCH -n4 -c8\n", "export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK\nsrun gmx mdrun", ("srun-cpus", WARNS)),
    "tasks-per-gpu-and-per-node": ("#SBATCH --gpus=4 --ntasks-per-gpu=1 --ntasks-per-node=4\n", "hostname", ("options-contradict", FAILS)),
    "en-dash-in-an-option": ("#SBATCH –nodes=2\n", "hostname", ("typographic-dash", FAILS)),
    "en-dash-of-srun": ("#SBATCH -n4\n", "srun –n 4 ./solver", ("typographic-dash", FAILS)),
    "server-and-a-bare-wait": ("#SBATCH --gpus=1\n", "set -e\npython -m vllm.entrypoints.openai.api_server &\nsleep 60\npython evaluate.py\nwait", ("wait-for-server", WARNS)),
    "unclosed-quote": ("#SBATCH -n1\n", 'echo "hello\npython t.py', ("shell-syntax", FAILS)),
    "mpi-without-tasks": ("#SBATCH -N2\n", "mpirun -n 8 ./solver", ("mpi-count", WARNS)),
    "variable-in-an-option": ("#SBATCH --nodes=$N\n", "hostname", ("bad-value", FAILS)),
    "placeholder": ("#SBATCH --nodes=<N>\n", "hostname", ("placeholder", WARNS)),
    "placeholder-that-is-empty": ("#SBATCH --nodes=\n", "hostname", ("placeholder", WARNS)),
    "partition-that-is-empty": ("#SBATCH --partition=\n", "hostname", ("placeholder", WARNS)),
    "placeholder-in-small-letters": ("#SBATCH --nodes=your_own_num_nodes\n", "hostname", ("placeholder", WARNS)),
    "placeholder-of-an-account": ("#SBATCH --account=your_account\n", "hostname", ("placeholder", WARNS)),
    "placeholder-of-two-words": ("#SBATCH --time={{ time }}\n", "hostname", ("placeholder", WARNS)),
    "placeholder-between-underscores": ("#SBATCH --nodes=__NODES__\n", "hostname", ("placeholder", WARNS)),
    "placeholder-in-brackets": ("#SBATCH --gres=gpu:[number]\n", "hostname", ("placeholder", WARNS)),
    "placeholder-of-a-partition": ("#SBATCH --partition={partition}\n", "hostname", ("placeholder", WARNS)),
    "unclosed-quote-beside-variables": ("#SBATCH -n1\n", 'echo "on ${HOSTNAME}"\npython t.py "${OUT}', ("shell-syntax", FAILS)),
    "block-left-open": ("#SBATCH -n1\n", 'if [ -n "${X}" ]; then\npython t.py', ("shell-syntax", FAILS)),
    "background-jobs-in-a-loop-at-the-end": ("#SBATCH -n4\n", "for i in 1 2; do\n    python t.py $i &\ndone", ("background-without-wait", FAILS)),
    "cpus-of-ray": ("#SBATCH -n1 -c8\n", "srun ray start --head --block", ("srun-cpus", WARNS)),
    "cpus-under-nsys": (TWO + "#SBATCH -c8\n", "srun -K nsys profile --kill none python t.py", ("srun-cpus", WARNS)),
    "word-misspelt-by-its-case": ("#SBATCH -n1\n#SBATCh --nodes=2\n", "hostname", ("ignored-option", WARNS)),
    "master-that-two-places-name": (EACH, 'list=$(scontrol show hostnames "$SLURM_JOB_NODELIST")\nnodes=("$list")\nexport MASTER_ADDR=${nodes[0]}\nsrun -K ' + TORCHRUN, ("master-not-a-host", FAILS)),
    "option-of-a-plugin": ("#SBATCH --environment=pytorch\n", "hostname", ("site-option", ADVICE)),
    "rank-in-a-variable-expanded-too-early": (EACH, FIRST.format("head -n 1") + "CMD=" + RANK.format(cmd="torchrun ", node="$SLURM_NODEID") + '\nsrun -K bash -c "$CMD"', ("expanded-too-early", FAILS)),
    "rank-in-a-part-of-a-variable-too-early": (EACH, FIRST.format("head -n 1") + "DIST=" + RANK.format(cmd="", node="$SLURM_NODEID") + '\nsrun -K bash -c "torchrun $DIST"', ("expanded-too-early", FAILS)),
    "sixteen-ranks-on-128-gpus": (RANKS, W + "srun -K python t.py", ("one-rank-per-gpu", WARNS)),
    "sixteen-ranks-beside-a-flag-that-shares-nothing": (RANKS + "#SBATCH --gres-flags=enforce-binding\n", W + "srun -K python t.py", ("one-rank-per-gpu", WARNS)),
    "sixteen-ranks-behind-another-step": (RANKS, W + "srun hostname\nsrun -K python t.py", ("one-rank-per-gpu", WARNS)),
    "four-ranks-on-two-gpus": ("#SBATCH -N1 --ntasks-per-node=4 --gpus-per-node=2\n", FIRST.format("head -n 1") + "srun -K python t.py", ("one-rank-per-gpu", WARNS)),
    "four-ranks-of-mpirun-on-two-gpus": ("#SBATCH -N1 --ntasks-per-node=4 --gpus-per-node=2\n", W + "mpirun -np 4 python t.py", ("one-rank-per-gpu", WARNS)),
    "torchrun-that-starts-one-worker": (G4, "torchrun --standalone t.py", ("processes-per-node", WARNS)),
    "deepspeed-on-more-gpus-than-there-are": (G4, f"{DEEPSPEED} --num_gpus=8 t.py", ("processes-per-node", FAILS)),
    "accelerate-with-the-processes-of-one-machine": (EACH, FIRST.format("head -n 1") + "srun -K bash -c 'accelerate launch --num_machines 2 --num_processes 4 --machine_rank $SLURM_NODEID --main_process_ip $MASTER_ADDR t.py'", ("processes-per-node", WARNS)),
    "accelerate-on-more-gpus-than-there-are": (G4, "accelerate launch --num_processes 8 t.py", ("processes-per-node", FAILS)),
    "container-by-which": (TWO, "srun -K $(which singularity) exec --nv a.sif torchrun --nnodes=2 --nproc_per_node=4 t.py", ("launcher-per-task", FAILS)),
    "launcher-behind-cd": (TWO, 'srun -K bash -c "cd $DIR && torchrun --nnodes=2 --nproc_per_node=4 t.py"', ("launcher-per-task", FAILS)),
    "static-without-a-node-rank": (EACH, FIRST.format("head -n 1") + "srun -K torchrun --nnodes=2 --nproc_per_node=4 --master_addr=$MASTER_ADDR t.py", ("node-rank-missing", FAILS)),
    "endpoint-without-a-backend": (EACH, FIRST.format("head -n 1") + "srun -K " + TORCHRUN.replace("--rdzv_backend=c10d ", ""), ("node-rank-missing", FAILS)),
    "deepspeed-on-two-nodes-alone": (EACH, "deepspeed t.py", ("deepspeed-nodes", FAILS)),
    "deepspeed-once-per-node": (EACH, "srun -K deepspeed t.py", ("deepspeed-nodes", FAILS)),
    "srun-inside-torchrun": (G4, "torchrun --standalone --nproc_per_node=4 --no-python srun python t.py", ("launcher-in-launcher", FAILS)),
    "rank-in-double-quotes": (TWO, FIRST.format("head -n 1") + 'srun -K bash -c "export RANK=$SLURM_PROCID; exec python t.py"', ("expanded-too-early", FAILS)),
    "rank-as-a-word-of-the-program": (TWO, FIRST.format("head -n 1") + "srun -K python t.py --rank $SLURM_PROCID", ("expanded-too-early", FAILS)),
    "local-rank-of-one-node": ("#SBATCH -N1 --ntasks-per-node=4 --gpus-per-node=4\n", 'srun -K bash -c "LOCAL_RANK=$SLURM_LOCALID exec python t.py"', ("expanded-too-early", FAILS)),
    "steps-of-a-loop-without-a-share": ("#SBATCH -n4\n", "for i in 1 2 3 4; do\n    srun ./solver $i &\n    pids+=($!)\ndone\nwait ${pids[@]}", ("step-takes-all", WARNS)),
    "memory-per-cpu-without-a-unit": ("#SBATCH -n1 --mem-per-cpu=8\n", "python t.py", ("memory-in-megabytes", WARNS)),
    "memory-twice-in-a-step": ("#SBATCH -n1\n", "srun --mem=4G --mem-per-cpu=1G python t.py", ("options-contradict", FAILS)),
    "port-of-a-whole-array": (TWO + "#SBATCH --array=0-3\n", FIRST.format("head -n 1") + "export MASTER_PORT=$((20000 + SLURM_ARRAY_JOB_ID % 999))\nsrun -K python t.py", ("fixed-port", WARNS)),
    "conda-in-a-batch-shell": ("#SBATCH -n1\n", "conda activate torch\npython t.py", ("conda-without-hook", WARNS)),
    "code-kept-and-only-told": ("#SBATCH -n1\n", 'python t.py\ncode=$?\necho "ended with $code"', ("exit-code-lost", ADVICE)),
    "code-only-told": ("#SBATCH -n1\n", 'python t.py\necho "ended with $?"', ("exit-code-lost", ADVICE)),
    "trap-and-a-solver-in-the-foreground": ("#SBATCH -n4 --signal=B:USR1@120\n", "trap 'touch stop' USR1\nsrun ./solver", ("signal-lost", FAILS)),
    "placeholder-in-capitals": ("#SBATCH --partition=YOUR_PARTITION\n", "hostname", ("placeholder", WARNS)),
    "placeholder-of-one-word": ("#SBATCH --account=youraccount\n", "hostname", ("placeholder", WARNS)),
    "variable-in-the-name-of-a-job": ("#SBATCH --job-name=$NAME\n", "hostname", ("variable-in-option", WARNS)),
    "only-option-behind-a-blank": ("# SBATCH --ntasks-per-node=2\n", "hostname", ("ignored-option", WARNS)),
    "port-by-default-in-two-places": (EACH.replace("gpus-per-node=4", "gpus-per-node=2"), FIRST.format("head -n 1") + "MASTER_PORT=${MASTER_PORT:-29500}\nsrun -K torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT t.py", ("fixed-port", WARNS)),
    "unknown-option-of-a-site": ("#SBATCH --quotatype=auto\n", "hostname", ("site-option", WARNS)),
    "command-that-grows-by-+=": (TWO, 'CMD="torchrun --nnodes=2 --nproc_per_node=4"\nCMD+=" t.py"\nsrun -K $CMD', ("launcher-per-task", FAILS)),
    "command-that-grows-in-an-if": (TWO, 'CMD="torchrun --nnodes=2 --nproc_per_node=4 t.py"\nif [ -n "$1" ]; then\n  CMD="$CMD --resume $1"\nfi\nsrun -K $CMD', ("launcher-per-task", FAILS)),
    "rank-exported-by-the-batch-shell": (TWO, FIRST.format("head -n 1") + "export RANK=$SLURM_PROCID\nsrun -K python t.py", ("expanded-too-early", WARNS)),
    "rank-by-arithmetic-and-a-second-variable": (TWO, FIRST.format("head -n 1") + "ID=$((SLURM_PROCID))\nexport RANK=\"${ID}\"\nsrun -K python t.py", ("expanded-too-early", WARNS)),
    "node-rank-by-arithmetic": (EACH, FIRST.format("head -n 1") + "srun -K torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$((SLURM_NODEID)) --master_addr=$MASTER_ADDR t.py", ("expanded-too-early", FAILS)),
    "node-rank-of-the-environment-of-torchrun": (EACH, FIRST.format("head -n 1") + "export PET_NODE_RANK=$SLURM_NODEID\nsrun -K torchrun --nnodes=2 --nproc_per_node=4 --master_addr=$MASTER_ADDR t.py", ("expanded-too-early", FAILS)),
    "variable-of-a-job-that-is-submitted": ("", "sbatch <<EOF\n#!/bin/bash\n#SBATCH -n2\nsrun ./solver $SLURM_JOB_NODELIST \\$SLURM_JOB_ID\nEOF", ("expanded-too-early", WARNS)),
    "more-processes-of-two-programs": ("#SBATCH -n2\n", "mpirun -n 1 ./a : -n 3 ./b", ("mpi-count", WARNS)),
    "line-0-for-sed": ("#SBATCH -n1 --array=0-9\n", 'ID=$SLURM_ARRAY_TASK_ID\npython t.py $(sed -n "${ID}p" f)', ("array-from-zero", FAILS)),
    "names-that-slurm-never-sets": ("#SBATCH -n1\n", "python t.py $SLURM_CPUS_PER_NODE", ("unset-variable", WARNS)),
    "gpus-of-a-step-in-the-batch-shell": ("#SBATCH --gres=gpu:2\n", "N=$(echo $SLURM_STEP_GPUS | wc -w)\ntorchrun --standalone --nproc_per_node=$N t.py", ("unset-variable", WARNS)),
    "node-rank-carried-by-a-variable": (EACH, FIRST.format("head -n 1") + "export NODE_RANK=$SLURM_NODEID\nsrun -K bash -c 'torchrun --nnodes=2 --nproc_per_node=4 --node_rank=$NODE_RANK --master_addr=$MASTER_ADDR t.py'", ("expanded-too-early", FAILS)),
    "gpus-of-gres-from-slurm-gpus": ("#SBATCH --gres=gpu:2\n", "N=$SLURM_GPUS\ntorchrun --standalone --nproc_per_node=$N t.py", ("unset-variable", WARNS)),
    "one-worker-a-node-on-several-nodes": (EACH, FIRST.format("head -n 1") + TORCHRUN.replace("torchrun", "srun -K torchrun").replace("node=4", "node=1"), ("processes-per-node", WARNS)),
    "code-lost-by-a-wait": (G4, "torchrun --standalone --nproc_per_node=4 t.py &\npid=$!\nwait $pid || true\nstatus=$?\necho $status", ("exit-code-lost", ADVICE)),
    "code-lost-of-a-script-in-another-file": ("#SBATCH -n1\n", "bash collect.sh\nrsync -a out elsewhere", ("exit-code-lost", ADVICE)),
    "server-in-front-of-the-work": (G4, "vllm serve model\npython t.py", ("wait-for-server", WARNS)),
    "server-in-front-of-the-work-after-a-pause": (G4, "set -e\npython -m llava.serve.model_worker\nsleep 10\npython t.py", ("wait-for-server", WARNS)),
    "assignment-after-srun": ("#SBATCH -n1\n", "srun A=1 python t.py", ("shell-word", FAILS)),
    "assignment-after-nohup": ("#SBATCH -n1\n", "nohup A=1 python t.py &\nwait $!", ("shell-word", FAILS)),
    "words-to-fill-in-with-blanks": ("#SBATCH -n1\n", "module load <your cuda module>\npython t.py", ("placeholder", WARNS)),
    "image-to-fill-in": ("#SBATCH -n1\n", "apptainer exec /home/path_to_image.sif python t.py", ("placeholder", WARNS)),
    "one-gpu-of-four-chosen-in-front-of-the-program": (G4, "CUDA_VISIBLE_DEVICES='0' python t.py", ("visible-devices", WARNS)),
    "blanks-around-an-equals-sign": ("#SBATCH -n1\n", "  NAME = value\npython t.py", ("line-as-command", FAILS)),
    "blanks-around-the-sign-of-what-is-read-later": ("#SBATCH -n1\n", "name = value\npython t.py ${name}", ("line-as-command", FAILS)),
    "comment-inside-a-command": ("#SBATCH -n1\n", "python t.py \\\n  # --old 1 \\\n  --new 2", ("line-as-command", FAILS)),
    "two-requests-on-one-line": ("#SBATCH --error=e.txt#SBATCH --nodes=1\n", "python t.py", ("ignored-option", WARNS)),
    "one-letter-with-two-dashes": ("#SBATCH --D .\n", "python t.py", ("unknown-option", FAILS)),
    "a-line-of-stray-words": ("#SBATCH --time=1:00 module load gcc cuda\n", "python t.py", ("malformed-option", FAILS)),
    "cpus-of-a-script-in-another-file": ("#SBATCH -n1 -c8\n", "srun ./train.sh", ("srun-cpus", WARNS)),
    "blank-inside-a-variable": ("#SBATCH --account=${A:?set A}\n", "hostname", ("malformed-option", FAILS)),
    "placeholder-of-a-partition-between-underscores": ("#SBATCH --partition=__GPU_PARTITION__  # TODO\n", "hostname", ("placeholder", WARNS)),
    "cpus-of-a-program-whose-words-are-handed-on": ("#SBATCH -n1 -c8\n", 'srun python "$@"', ("srun-cpus", WARNS)),
    "placeholder-of-a-key": ("#SBATCH --wckey=YOUR_KEY\n", "hostname", ("placeholder", WARNS)),
    "folder-of-the-script-in-a-variable": ("#SBATCH -n1\n", "HERE=${BASH_SOURCE[0]%/*}\npython $HERE/t.py", ("script-folder", WARNS)),
    "variable-that-the-inner-shell-does-not-get": (EACH, "DATA=/data\nsrun bash -c './solver $DATA'", ("not-exported", WARNS)),
    "accelerate-once-a-task": (TWO, "export N=`scontrol show hostnames $SLURM_JOB_NODELIST | wc -l`\n" + FIRST.format("head -n 1") + "srun -K bash -c 'accelerate launch --num_machines $N --num_processes $((4 * N)) --machine_rank $SLURM_PROCID --main_process_ip $MASTER_ADDR t.py'", ("launcher-per-task", FAILS)),
    "deepspeed-once-a-task": (TWO.replace("N2", "N1"), f"srun -K {DEEPSPEED} t.py", ("launcher-per-task", FAILS)),
    "torchrun-once-a-task-by-default": (TWO, "srun -K torchrun --nnodes=2 t.py", ("launcher-per-task", FAILS)),
    "server-that-a-comment-alone-ends": (G4, "set -e\nray start --head --block &\nbash work.sh\n# kill %1\nwait", ("wait-for-server", WARNS)),
    "tasks-that-slurm-does-not-count": ("#SBATCH -N2 --gpus-per-node=1\n", FIRST.format("head -n 1") + TORCHRUN.replace("torchrun --nnodes=2 --nproc_per_node=4", "srun -K torchrun --nnodes=$SLURM_NTASKS --nproc_per_node=1"), ("unset-variable", WARNS)),
    "done-that-closes-nothing": ("#SBATCH -n1\n", "python t.py\ndone", ("shell-syntax", FAILS)),
    "variable-in-an-address-of-mail": ("#SBATCH --mail-user=${USER}@a.org\n", "hostname", ("variable-in-option", WARNS)),
    "one-worker-by-a-variable": ("#SBATCH -N1 --ntasks-per-node=1 --gpus-per-node=2\n", "srun -K torchrun --standalone --nproc_per_node=$SLURM_NTASKS_PER_NODE t.py", ("processes-per-node", WARNS)),
    "server-beside-work-in-the-background": ("#SBATCH --gpus=1\n", "trap 'exit 1' ERR\nvllm serve m & python t.py & wait", ("wait-for-server", WARNS)),
    "server-of-a-trap-that-comes-too-late": ("#SBATCH -n1\n", "set -e\nmlflow server --port=0 &\ntrap 'kill $!' EXIT\npython t.py\nwait", ("wait-for-server", WARNS)),
    "head-of-ray-in-front-of-the-work": ("#SBATCH -n1\n", "ray start --head --block\npython t.py", ("wait-for-server", WARNS)),
    "option-of-a-training-that-is-no-server": ("#SBATCH -n1\n", "python t.py --monitor loss &", ("background-without-wait", FAILS)),
    "tail-that-never-ends": ("#SBATCH -n1\n", "sbatch next.sh\ntail -F out.log", ("wait-for-server", WARNS)),
    "account-whose-code-is-to-be-filled-in": ("#SBATCH --account=hpc_project_code\n", "hostname", ("placeholder", WARNS)),
    "placeholder-of-points": ("#SBATCH --account=....\n", "hostname", ("placeholder", WARNS)),
    "request-without-its-s": ("#SBATCH -n1\n#BATCH --job-name=training\n", "hostname", ("ignored-option", WARNS)),
    "placeholder-of-crosses": ("#SBATCH --partition=xxxx\n", "hostname", ("placeholder", WARNS)),
    "folder-of-the-script-beside-scontrol": (EACH, 'H=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)\nsource $(dirname "$0")/env.sh $H', ("script-folder", WARNS)),
    "ranks-by-jax-s-names": ("#SBATCH -N2 --ntasks-per-node=1\n", "srun bash -c 'python t.py --num-processes $SLURM_NTASKS --process-id $SLURM_PROCID'", ("kill-on-bad-exit", WARNS)),
    "port-of-an-init-method": (TWO.replace("node=4", "node=2"), FIRST.format("head -n 1") + "srun -K python t.py --init_method tcp://$MASTER_ADDR:3456 --world_size 4", ("fixed-port", WARNS)),
    "launcher-in-a-variable-of-several-commands": (TWO, 'SETUP="cd run;"\nCMD="torchrun --nnodes=2 --nproc_per_node=4"\nsrun -K bash -c "$SETUP $CMD t.py"', ("launcher-per-task", FAILS)),
    "program-with-a-task-for-each-gpu": (TWO, "srun python t.py", ("kill-on-bad-exit", ADVICE)),
    "program-in-a-container-with-a-task-for-each-gpu": (TWO, "srun apptainer exec --nv a.sif conda-python run.py --a 1", ("kill-on-bad-exit", ADVICE)),
    "program-with-a-master-to-meet-at": (EACH, FIRST.format("head -n 1") + "srun python t.py", ("kill-on-bad-exit", ADVICE)),
    "gpus-that-the-script-hides": (G4, "export CUDA_VISIBLE_DEVICES=0,1\nbash run.sh", ("visible-devices", WARNS)),
    "code-lost-of-a-program-beside-the-script": ("#SBATCH -n1\n", "make\n{ time ./solver 5; } 2>&1\nrm solver", ("exit-code-lost", ADVICE)),
    "world-size-that-slurm-does-not-count": ("#SBATCH -N2\n", FIRST.format("head -n 1") + W + "srun -K python t.py", ("unset-variable", WARNS)),
    "port-that-c10d-does-not-read": (G4, "torchrun --nproc_per_node=4 --master_port=29501 --rdzv_backend=c10d t.py", ("fixed-port", WARNS)),
    "port-in-the-shared-queue-of-nersc": (G4 + "#SBATCH --constraint=gpu\n#SBATCH --qos=shared\n", "torchrun --nproc_per_node=4 --master_port=29501 t.py", ("fixed-port", WARNS)),
    "default-port-of-torchrun": (G4, "python -m torch.distributed.run --nproc_per_node=4 t.py", ("fixed-port", WARNS)),
    "copies-of-a-program-on-too-few-gpus": ("#SBATCH -n3 --gres=gpu:1\n", "srun -K python t.py", ("one-rank-per-gpu", WARNS)),
    "solver-on-the-first-of-two-nodes": ("#SBATCH -n2 -N2\n", "RUST_BACKTRACE=1 ./target/solver", ("missing-srun", WARNS)),
    "cpus-under-a-wrapper": (G4 + "#SBATCH -c8\n", "srun uv run -m training.main", ("srun-cpus", WARNS)),
    "first-of-three-programs": ("#SBATCH -n1\n", "python evaluate.py --cfg a\necho b\npython evaluate.py --cfg b\necho c\npython evaluate.py --cfg c", ("exit-code-lost", ADVICE)),
    "path-to-fill-in": ("#SBATCH -n1\n", "source /path/to/venv/bin/activate\npython t.py", ("placeholder", WARNS)),
    "a-redirection-that-is-to-be-filled-in": ("#SBATCH -n1\n", "module load <your_module>\npython t.py", ("placeholder", WARNS)),
    "a-folder-that-is-to-be-filled-in": ("#SBATCH -n1\n", "cd /home/<user>/run || exit 1\npython t.py", ("placeholder", WARNS)),
    "a-value-that-is-to-be-filled-in": ("#SBATCH -n1\n", "python t.py --data <DATA> --lr 1", ("placeholder", WARNS)),
    "the-home-of-somebody-to-be-filled-in": ("#SBATCH -n1\n", "cd /home/xxx/run || exit 1\npython t.py", ("placeholder", WARNS)),
    "a-folder-for-output-that-is-to-be-filled-in": ("#SBATCH -n1\n#SBATCH --output=/path/to/logs/%j.out\n", "python t.py", ("placeholder", WARNS)),
    "an-output-that-is-to-be-filled-in": ("#SBATCH -n1\n#SBATCH --output=OUTPUT_PATH\n", "python t.py", ("placeholder", WARNS)),
    "an-output-of-somebody-s-template": ("#SBATCH -n1\n#SBATCH --output=/data/{SET}/%j.out\n", "python t.py", ("placeholder", WARNS)),
    "an-account-still-to-do": ("#SBATCH -n1\n#SBATCH --account=TODO_YOUR_ACCOUNT\n", "python t.py", ("placeholder", WARNS)),
    "a-folder-in-brackets": ("#SBATCH -n1\n", "cd [path-to-code]/train\npython t.py", ("placeholder", WARNS)),
    "an-image-still-to-do": ("#SBATCH -n1\n", "IMAGE=TODO_YOUR_DIR/a.sif\npython t.py", ("placeholder", WARNS)),
    "a-path-in-angles": ("#SBATCH -n1\n", "export LIBS=<path/to/rccl/lib> # yours\npython t.py", ("placeholder", WARNS)),
    "an-account-to-be-changed": ("#SBATCH -n1\n#SBATCH --account=changeme@gpu\n", "python t.py", ("placeholder", WARNS)),
    "an-account-that-is-one-letter": ("#SBATCH -n1\n#SBATCH --account=X\n", "python t.py", ("placeholder", WARNS)),
    "a-name-of-the-user-in-mail-user": ("#SBATCH -n1 --output=%u.out\n#SBATCH --mail-user=%u@uni.edu\n", "python t.py", ("variable-in-option", WARNS)),
    "one-node-for-the-only-step-beside-a-folder": (EACH, "set -e\nmkdir -p logs\nsrun --nodes=1 --ntasks=1 bash pretrain.sh\ndate", ("idle-nodes", WARNS)),
    "a-bare-wait-behind-a-trap-that-waits": ("#SBATCH -n4\n", "srun ./solver &\nsave() {\n  wait $!\n}\n. setup.sh\nwait", ("exit-code-lost", ADVICE)),
    "ray-on-the-first-node-alone": (EACH, "ray start --head\npython tune.py", ("missing-srun", WARNS)),
    "default-port-of-deepspeed": (G4, "deepspeed --num_gpus=4 t.py", ("fixed-port", WARNS)),
    "server-that-is-stopped-behind-its-own-wait": (G4, "set -e\nray start --head --block &\nhead=$!\npython tune.py\nwait $head || true\nray stop", ("wait-for-server", WARNS)),
    "bare-wait-in-front-of-a-kill": (G4, "set -e\nvllm serve model &\nserver=$!\npython ask.py\nwait\nkill $server", ("wait-for-server", WARNS)),
    "command-line-in-one-word": ("#SBATCH -n1\n", 'srun "cd_up; ./solver 5"', ("shell-word", FAILS)),
    "program-and-its-words-in-one-word": ("#SBATCH -n1\n", "srun 'python t.py'", ("shell-word", FAILS)),
    "key-of-several-words-to-be-filled-in": ("#SBATCH -n1\n", "export HF_TOKEN=<Your Hugging Face Key>\npython t.py", ("placeholder", WARNS)),
    "path-of-somebody": ("#SBATCH -n1\n", "export CONFIG=/some/path/config.toml\npython t.py", ("placeholder", WARNS)),
    "program-under-a-wrapper-of-singularity": (TWO, "srun bsc_singularity exec --nv a.sif python t.py", ("kill-on-bad-exit", ADVICE)),
    "program-behind-two-binds": (TWO, "srun singularity exec --nv --bind $A:$A,$B:$B a.sif python t.py", ("kill-on-bad-exit", ADVICE)),
    "program-behind-xvfb": (TWO, "srun xvfb-run -a -e x.log python t.py", ("kill-on-bad-exit", ADVICE)),
    "program-behind-a-flag-of-pyxis": (TWO, "srun --container-image=a.sqsh --no-container-mount-home python t.py", ("kill-on-bad-exit", ADVICE)),
    "conda-behind-modules-of-others": ("#SBATCH -n1\n", "module purge\nmodule load cuda12.4 gcc/11.2\nconda activate torch\npython t.py", ("conda-without-hook", WARNS)),
    "placeholder-and-what-of": ("#SBATCH -n1 --account=PLACEHOLDER_ACCOUNT\n", "hostname", ("placeholder", WARNS)),
    "placeholder-of-a-folder": ("#SBATCH -n1 --chdir=SLURMWORKDIR/a\n", "hostname", ("placeholder", WARNS)),
    "path-in-one-word": ("#SBATCH -n1\n", "cd /path_to_models\npython t.py", ("placeholder", WARNS)),
    "code-lost-of-a-solver-by-a-variable": ("#SBATCH -n4\n", "for i in 1 2; do\n    BIN=/opt/namd\n    $BIN/namd2 +p4 $i.inp > $i.out\ndone\ndate", ("exit-code-lost", ADVICE)),
    "code-lost-of-julia-in-a-subshell": ("#SBATCH -n1\n", "(set -x; A=1 julia g.jl)\necho done", ("exit-code-lost", ADVICE)),
    "code-lost-of-a-step-behind-a-training": ("#SBATCH -n4\n", "set -e\npython prepare.py\nset +e\ntime mpirun ./solver\necho done", ("exit-code-lost", ADVICE)),
    "first-of-two-programs-of-mpi": ("#SBATCH -n4\n", "mpirun pw.x -in a > a.out\nmpirun ph.x -in b > b.out", ("exit-code-lost", ADVICE)),
    "first-of-two-steps": ("#SBATCH -n4\n", "srun pw.x < a > a.out\nsrun plot.x < c", ("exit-code-lost", ADVICE)),
    "tensor-parallel-is-no-driver": (EACH, "export NAME=tensor_parallel\npython t.py", ("missing-srun", WARNS)),
    "empty-beside-a-comment": ("#SBATCH -n1\n#SBATCH --account=          # yours\n", "hostname", ("placeholder", WARNS)),
    "address-of-somebody-to-be-filled-in": ("#SBATCH -n1\n#SBATCH --mail-user=<user@email.com>\n", "hostname", ("placeholder", WARNS)),
    "a-brace-that-is-to-be-filled-in": ("#SBATCH -n1\n", "source {venv}/bin/activate\npython t.py", ("placeholder", WARNS)),
    "a-choice-of-folders-that-is-to-be-made": ("#SBATCH -n1\n", "python /home/<lab1 OR lab2>/t.py", ("placeholder", WARNS)),
    "an-account-whose-end-is-missing": ("#SBATCH -n1 --account=def-\n", "hostname", ("placeholder", WARNS)),
    "conda-behind-a-look-for-modules": ("#SBATCH -n1\n", "module spider cuda\nconda activate torch\npython t.py", ("conda-without-hook", WARNS)),
    "two-in-the-background-beside-a-third": ("#SBATCH -n1\n", "python a.py &\npython b.py &\nnvidia-smi > gpu.txt\npython c.py", ("background-without-wait", WARNS)),
    "an-account-of-somebody": ("#SBATCH -n1 --account=def-someuser\n", "hostname", ("placeholder", WARNS)),
    "an-account-of-my-group": ("#SBATCH -n1 -A mygroup\n", "hostname", ("placeholder", WARNS)),
    "a-partition-by-what-it-is": ("#SBATCH -n1 --partition=partition_name\n", "hostname", ("placeholder", WARNS)),
    "an-address-of-an-example": ("#SBATCH -n1 --mail-user=me@example.org\n", "hostname", ("placeholder", WARNS)),
    "the-home-of-a-user-name": ("#SBATCH -n1\n", "cd /home/username/run || exit 1\nhostname", ("placeholder", WARNS)),
    "an-account-in-brackets": ("#SBATCH -n1 --account=[account]\n", "hostname", ("placeholder", WARNS)),
    "a-path-in-brackets": ("#SBATCH -n1\n", "WEIGHTS='[checkpoint-path]'\npython t.py $WEIGHTS", ("placeholder", WARNS)),
    "a-key-of-crosses": ("#SBATCH -n1\n", "export WANDB_API_KEY=\"xxx\"\npython t.py", ("placeholder", WARNS)),
    "a-file-for-all-jobs-of-an-array": ("#SBATCH --array=1,3\n#SBATCH -o out_dir\n", "hostname", ("array-truncates", WARNS)),
    "a-path-that-is-told-in-words": ("#SBATCH -n1\n", "OUT=\"path to an existing folder\"\npython t.py $OUT", ("placeholder", WARNS)),
    "code-lost-before-a-plain-exit": ("#SBATCH -n1\n", "python t.py\necho done\n\nexit", ("exit-code-lost", ADVICE)),
    "a-word-of-requests-with-two-letters-changed": ("#SABTCH --gpus=1\n", "hostname", ("ignored-option", WARNS)),
    "too-few-tasks-of-noether-run": (TWO, "srun -n 4 noether run train.py", ("one-rank-per-gpu", FAILS)),
    "the-rank-of-the-first-task-for-a-script": (TWO, "srun noether run t.py --rank $SLURM_PROCID", ("expanded-too-early", FAILS)),
    "a-variable-that-nothing-sets": ("#SBATCH -n1\n", "./solver --in $infile", ("unset-variable", WARNS)),
    "a-module-path-that-is-not-exported": ("#SBATCH -n1\n", "PYTHONPATH=src:$PYTHONPATH\npython t.py", ("not-exported", WARNS)),
    "mpirun-on-the-first-node-alone": ("#SBATCH -N2 --ntasks-per-node=16\n", "mpirun -np 16 ./solver", ("idle-nodes", WARNS)),
    "a-program-behind-a-backslash": ("#SBATCH -n1\n", "samtools view -b a \\\n  samtools sort -o b -", ("line-as-command", WARNS)),
    "a-value-of-two-words": ("#SBATCH -n1\n", 'A=x\nB=$A\nA=${A} "${B}"', ("line-as-command", FAILS)),
    "a-step-without-a-program": ("#SBATCH -n1\n", "set -o pipefail\nsrun --label | tee log", ("shell-word", FAILS)),
    "gpus-of-tasks-that-nobody-counts": ("#SBATCH --gpus-per-task=1\n", "export CUDA_VISIBLE_DEVICES=1,0\nsrun python t.py", ("options-contradict", WARNS)),
}  # fmt: skip


@pytest.mark.parametrize(("options", "body", "expected"), WRONG.values(), ids=WRONG.keys())
def test_what_was_missed_is_found(options: str, body: str, expected: tuple[str, str]) -> None:
    assert found(f"#!/bin/bash\n{options}{body}\n") == [expected]


BODIES = {  # name: (first line and body, the findings)
    "zsh": ("#!/usr/bin/zsh\n#SBATCH -n1\nfor i in {1..3}; echo $i\n", None),
    "tcsh": ("#!/bin/tcsh\n#SBATCH -n1\nsetenv A 1\nif ($?B) then\n", []),
    "tcsh-with-a-wrong-option": ("#!/bin/tcsh\n#SBATCH --time=2h\nsetenv A 1\n", [(2, "bad-value", FAILS)]),
    "python": ("#!/usr/bin/env python3\n#SBATCH -n1\nprint(f'{1}')\n", []),
    "python-that-writes-a-job": ("#!/usr/bin/env python3\njob = '''#!/bin/bash\n#SBATCH --nodes=1\nhostname\n'''\n", []),
}  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), BODIES.values(), ids=BODIES.keys())
def test_of_another_language_the_options_are_read(text: str, expected: list[tuple[int, str, str]] | None) -> None:
    findings, summary = lint_text(text, JOB)
    assert [(f.line, f.rule, f.level) for f in findings] == (expected or [])
    unread = f"{text.partition(chr(10))[0]}: options read, body not read"
    assert summary == (() if expected is None or "shell-syntax" in {f.rule for f in findings} else (unread,))


@pytest.mark.parametrize(
    ("option", "fix"),
    [
        ("--mem=2.5G", "#SBATCH --mem=2560M"),
        ("--mem=3GiB", "#SBATCH --mem=3G"),
        ("--mem=much", "for example #SBATCH --mem=64G"),
        ("--gres=gpu:2080ti", "#SBATCH --gres=gpu:2080ti:1"),
        ("--gpus=1g.5gb", "#SBATCH --gpus=1g.5gb:1"),
        ("--ntasks=0", "for example #SBATCH --ntasks=4"),
        ("--output=/users/$USER/%j.out", "#SBATCH --output=/users/%u/%j.out"),
        ("--output=$SLURM_SUBMIT_DIR/%j.out", "#SBATCH --output=%j.out"),
        ("--output=$HOME/%j.out", "the full path"),
        ("--mem=1", "--mem=1G, if gigabytes are meant"),
    ],
)
def test_a_value_is_corrected_where_the_script_says_to_what(option: str, fix: str) -> None:
    assert [f.fix for f in lint_text(f"#!/bin/bash\n#SBATCH {option}\nhostname\n", JOB)[0]] == [fix]


def test_the_fix_of_an_endpoint_keeps_its_port() -> None:
    text = f"#!/bin/bash\n{EACH}srun -K torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=localhost:$PORT t.py\n"
    assert [f.fix[:38] for f in lint_text(text, JOB)[0]] == ['--rdzv_endpoint="$MASTER_ADDR:$PORT"  ']


@pytest.mark.parametrize(("launch", "ranks"), [("torchrun", 1), ("torchrun --nproc_per_node=gpu", 4), ("deepspeed", 4)])
def test_the_summary_knows_what_a_launcher_starts_by_itself(launch: str, ranks: int) -> None:
    (summary,) = lint_text(f"#!/bin/bash\n{G4}{launch} t.py\n", JOB)[1]
    assert f"→ {ranks} rank" in summary


def test_the_summary_counts_what_the_finding_counts() -> None:
    (finding,), (summary,) = lint_text(f"#!/bin/bash\n{TWO}srun -K torchrun --nnodes=2 --nproc_per_node=4 t.py\n", JOB)
    assert ("32 processes on 8 GPUs" in finding.message, "32 ranks on 8 GPUs" in summary) == (True, True)


HEREDOC = """#!/bin/bash
for n in 1 2; do
sbatch {mark} <<{quoted}
#!/bin/bash
#SBATCH --nodes=$n
#SBATCH --time=2h
python t.py
EOF
done
"""


def test_a_script_in_a_here_document_is_linted_as_one_of_its_own() -> None:
    text = HEREDOC.format(mark="", quoted="EOF")
    assert [(f.line, f.rule) for f in lint_text(text, JOB)[0]] == [(6, "bad-value")]
    text = HEREDOC.format(mark="", quoted="'EOF'")
    assert [(f.line, f.rule) for f in lint_text(text, JOB)[0]] == [(5, "bad-value"), (6, "bad-value")]


def test_requests_below_assignments_are_late_and_several_scripts_in_a_file_are_not_one() -> None:
    below = "a=1\n#!/bin/bash\n#SBATCH --time=1:00:00\npython t.py\n"
    assert found(below) == [("no-shebang", FAILS), ("ignored-option", FAILS)]
    (first, *_), _ = lint_text(f"# a\n#!/bin/bash\n#SBATCH -n1\nhostname\n{below}", JOB)
    assert (first.rule, first.edit) == ("no-shebang", None)


def test_a_here_document_that_is_indented_by_tabs_is_read() -> None:
    text = "#!/bin/bash\nsbatch <<- EOF\n\t#!/bin/bash\n\t#SBATCH --time=2h\n\tpython t.py\n\tEOF\n"
    assert [(f.line, f.rule) for f in lint_text(text, JOB)[0]] == [(4, "bad-value")]


GENERATED = """#!/bin/bash
cat > job.sh <<EOF
#!/bin/bash
#SBATCH --nodes=$NODES
#SBATCH --ntasks-per-node=1
MASTER_ADDR=\\$(scontrol show hostnames "\\$SLURM_JOB_NODELIST" | awk '{print \\$1; exit}')
export MASTER_ADDR
MASTER_PORT=29500
srun -K bash -c 'torchrun \\\\
  --nproc_per_node=$GPUS --nnodes=\\$SLURM_NNODES --node_rank=\\$SLURM_NODEID \\\\
  --master_addr=\\$MASTER_ADDR --master_port=29500 t.py'
EOF
sbatch job.sh
"""


def test_a_here_document_is_read_as_the_job_has_it_and_what_is_to_be_written_is_escaped_for_it() -> None:
    findings, summary = lint_text(GENERATED, JOB)
    assert [(f.line, f.rule) for f in findings] == [(8, "fixed-port")]
    assert findings[0].fix.startswith(r"\$((20000 + SLURM_JOB_ID % 20000))")
    assert summary[0].startswith("line 9: srun → bash → torchrun → t.py: ")


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("python t.py\n", []),
        ("#!/bin/sh –l\n#SBATCH -n1\nhostname\n", ["typographic-dash"]),
        ("python t.py\nsbatch --array=0-3 job.sh\ndate\n", []),
        ("#SBATCH -n1\nhostname\n", ["no-shebang"]),
        ("#!/usr/bin/sbatch\n#SBATCH -n1\nhostname\n", ["shebang-words"]),
    ],
)
def test_a_file_without_options_of_its_own_needs_no_first_line(text: str, rules: list[str]) -> None:
    assert [rule for rule, _ in found(text, "run.sh")] == rules


def test_the_summary_lists_here_documents_in_the_order_of_the_script() -> None:
    jobs = "".join(f"sbatch <<'EOF'\n#!/bin/bash\n#SBATCH -n {n}\nsrun hostname\nEOF\n" for n in (2, 3, 4))
    _, summary = lint_text(f"#!/bin/bash\n{jobs}", JOB)
    assert [line.partition(":")[0] for line in summary] == ["line 5", "line 10", "line 15"]


@pytest.mark.parametrize(("setting", "shown"), [(W, True), ("", False)])
def test_what_only_looks_like_ranks_is_said_with_a_condition_and_left_by_fix(setting: str, shown: bool) -> None:
    (finding,) = lint_text(f"#!/bin/bash\n{TWO}{setting}srun python t.py\n", JOB)[0]
    assert finding.rule == "kill-on-bad-exit"
    assert finding.message.startswith("where the tasks are one training, ") is not shown
    assert finding.edit is not None
    assert finding.edit.safe is shown


def test_accelerate_is_not_told_to_start_the_one_process_that_it_refuses() -> None:
    launch = "accelerate launch --multi_gpu --num_processes 8 t.py"
    (finding,) = lint_text(f"#!/bin/bash\n#SBATCH --gpus=1\n{launch}\n", JOB)[0]
    assert (finding.rule, finding.edit, finding.fix) == ("processes-per-node", None, "#SBATCH --gpus-per-node=8")


def test_the_line_of_a_fixed_port_is_the_port_s() -> None:
    text = f"#!/bin/bash\n{EACH.replace('gpus-per-node=4', 'gpus-per-node=2')}PORT=29500\nHEAD=$(hostname)\nsrun -K torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d --rdzv_endpoint=$HEAD:$PORT t.py\n"
    assert [(f.line, f.rule) for f in lint_text(text, JOB)[0]] == [(3, "fixed-port")]


SEVERAL = {  # name: (options, body, the findings); the first three are from a popular question on the web
    "one-launcher-a-node": ("#SBATCH --ntasks=4 --nodes=4 --ntasks-per-node=1 --gres=gpu:4\n", "srun -K python -m torch.distributed.launch --nproc_per_node=4 --use_env main.py", {("deprecated-launcher", ADVICE), ("separate-runs", FAILS)}),
    "sixteen-gpus-and-four-tasks": ("#SBATCH --ntasks=4 --nodes=4 --ntasks-per-node=4 --gres=gpu:4\n", W + "srun -K python main.py", {("one-rank-per-gpu", WARNS)}),
    "sixty-four-processes-on-sixteen-gpus": ("#SBATCH --ntasks=16 --nodes=4 --ntasks-per-node=4 --gres=gpu:4\n", "srun -K torchrun --nnodes=4 --nproc_per_node=4 main.py", {("launcher-per-task", FAILS)}),
    "localhost-before-srun-is-there": (EACH, "torchrun --nnodes=2 --nproc_per_node=4 --rdzv_backend=c10d --rdzv_endpoint=localhost:0 t.py", {("master-is-localhost", FAILS), ("missing-srun", FAILS)}),
    "nodes-that-are-to-be-filled-in-are-several": ("#SBATCH --nodes=${N}\n", "srun -K bash -c 'torchrun --nnodes=$N --rdzv_backend=c10d --rdzv_endpoint=$HOSTNAME:$((20000 + SLURM_JOB_ID % 9)) t.py'", {("placeholder", WARNS), ("master-per-task", FAILS)}),
}  # fmt: skip


@pytest.mark.parametrize(("options", "body", "expected"), SEVERAL.values(), ids=SEVERAL.keys())
def test_each_of_several_faults_is_found(options: str, body: str, expected: set[tuple[str, str]]) -> None:
    assert set(found(f"#!/bin/bash\n{options}{body}\n")) == expected


ONE_CAUSE = {  # name: (script, the line of its one finding, how the message names other lines, the rule)
    "words-to-fill-in": ("#!/bin/bash\n#SBATCH -n1\nset -e; cd /path/to/run\npython t.py /path/to/run\npython u.py /path/to/data\n", 3, " (and on lines 4 and 5) before the job can run", "placeholder"),
    "options-to-fill-in": ("#!/bin/bash\n#SBATCH -N <N>\n#SBATCH -A your_account\nhostname\n", 2, "fill in <N> (and on line 3) before you submit", "placeholder"),
    "requests-behind-a-command": ("#!/bin/bash\ndate\n#SBATCH -J a\n#SBATCH -n1\nhostname\n", 3, "(and on line 4): it stops reading at", "ignored-option"),
    "a-licence-above-the-interpreter": ("# MIT\n\n#!/usr/bin/env python3\n#SBATCH -n1\nx = 3\nfor i in (x,):\n    print(i)\n", 1, "(line 3 does", "no-shebang"),
    "words-above-the-interpreter": ("Copyright (c) 2020\n#!/bin/bash\n#SBATCH -n1\n#SBATCH --time=1:00\nhostname\n", 1, "(line 2 does", "no-shebang"),
}  # fmt: skip


@pytest.mark.parametrize(("text", "line", "others", "rule"), ONE_CAUSE.values(), ids=ONE_CAUSE.keys())
def test_one_cause_is_one_finding_that_names_all_its_lines(text: str, line: int, others: str, rule: str) -> None:
    (finding,) = lint_text(text, JOB)[0]
    assert (finding.line, finding.rule, others in finding.message) == (line, rule, True)


def test_a_template_that_its_file_fills_in_is_left_alone() -> None:
    script = "#!/bin/bash\n#SBATCH --time=<time>\n#SBATCH --partition=<partition>\nhostname\n"
    text = f"#!/bin/bash\nt=$(cat << 'EOF'\n{script}EOF\n)\n"
    assert found(text) == [("placeholder", WARNS)]
    assert found(f'{text}echo "$t" | sed "s/<time>/$1/" | sed "s/<partition>/$2/" > job.sbatch\n', "make.sh") == []

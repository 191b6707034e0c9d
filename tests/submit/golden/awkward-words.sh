#!/bin/bash
# Written by noether 0.1.0 submit. To start it: sbatch FILE
#SBATCH --job-name=cars
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --signal=USR2@90
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --comment='noether:my runs/it'"'"'s/cars'
#SBATCH --output=slurm/%j.out

# Remove variables that another launcher or another job's step has left in the environment.
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT \
    ${!TORCHELASTIC_*} ${!OMPI_*} ${!PMI*} \
    ${!SLURM_STEP*} ${!SLURM_PTY*} ${!SLURM_CPU_BIND*} ${!SLURM_MEM_BIND*}

echo $HOME
# Undo set -e and pipefail, in case the lines above set them: exit codes are handled below.
set +e +o pipefail

run='my runs/it'"'"'s'/cars
restarts=${SLURM_RESTART_COUNT:-0}
[ "$restarts" -gt 0 ] || rm -f "$run/cancelled"
rm -f "$run/stopped.json"
# For `noether status` and `noether logs`: the job id, and the file that the job writes to.
output=$(readlink "/proc/$$/fd/1" | sed 's/["\\]/\\&/g')
mkdir -p "$run" && printf '{"job": "%s", "output": "%s"}\n' "$SLURM_JOB_ID" "$output" > "$run/.job.json" &&
    mv "$run/.job.json" "$run/job.json"

# When Slurm ends a job, it signals this shell too. The trap keeps the shell alive to learn how the ranks ended.
ended_by_slurm=no
trap 'ended_by_slurm=yes' TERM
srun --kill-on-bad-exit=1 --wait=60 \
    noether train \
    'slurm.slurm_setup=['"'"'echo $HOME'"'"']' \
    run_id=cars 'output_path="my runs/it'"'"'s"' resume=auto
code=$?
trap - TERM

# The ranks exit with 75 once they have saved everything. --kill-on-bad-exit may kill some as they exit, and srun
# then returns their code; stopped.json was written before the first rank exited.
[ -e "$run/stopped.json" ] && code=75
# USR2 came while the ranks were being started, before they could catch it.
[ "$code" -eq 140 ] && code=75
[ "$code" -eq 75 ] || exit "$code"

# How many starts in a row, including this one, have saved nothing new.
stalled=$(sed -n 's/.*"attempts_without_progress": \([0-9]*\).*/\1/p' "$run/stopped.json" 2>/dev/null)
if [ -e "$run/cancelled" ]; then
    echo "noether: cancelled; everything is saved in $run"
elif [ "$ended_by_slurm" = yes ]; then
    echo "noether: Slurm ended the job; everything is saved in $run"
elif [ "$restarts" -ge 50 ]; then
    echo "noether: requeued 50 times already (slurm.max_requeues); submit it again to continue"
elif [ "${stalled:-0}" -ge 3 ]; then
    echo "noether: 3 starts in a row saved nothing new; not queued again"
else
    trap '' TERM  # A requeue signals this shell too, which still has to report the outcome.
    if said=$(scontrol requeue "$SLURM_JOB_ID" 2>&1); then
        echo "noether: everything is saved in $run; queued again"
    else
        echo "noether: everything is saved in $run, but Slurm refused to queue the job again: $said"
        cp "$0" "$run/job.sh"  # Slurm deletes its copy of this script with the job.
        echo "noether: to continue: cd $(printf %q "$PWD") && sbatch $(printf %q "$run/job.sh")"
    fi
fi
exit "$code"

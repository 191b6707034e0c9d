#!/bin/bash
# Written by noether 0.1.0 submit. To start it: sbatch FILE
#SBATCH --job-name=cars
#SBATCH --partition=gpu
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=4
#SBATCH --gpus-per-node=a100:4
#SBATCH --cpus-per-task=8
#SBATCH --mem=64G
#SBATCH --time=240
#SBATCH --signal=USR2@90
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --comment=noether:runs/cars
#SBATCH --output=slurm/%j.out

# Remove variables that another launcher or another job's step has left in the environment.
unset RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK MASTER_ADDR MASTER_PORT \
    ${!TORCHELASTIC_*} ${!OMPI_*} ${!PMI*} \
    ${!SLURM_STEP*} ${!SLURM_PTY*} ${!SLURM_CPU_BIND*} ${!SLURM_MEM_BIND*}

run=runs/cars
restarts=${SLURM_RESTART_COUNT:-0}
[ "$restarts" -gt 0 ] || rm -f "$run/cancelled"
rm -f "$run/stopped.json"
# For `noether status` and `noether logs`: the job id, and the file that the job writes to.
output=$(readlink "/proc/$$/fd/1" | sed 's/["\\]/\\&/g')
mkdir -p "$run" && printf '{"job": "%s", "output": "%s"}\n' "$SLURM_JOB_ID" "$output" > "$run/.job.json" &&
    mv "$run/.job.json" "$run/job.json"
# Print the newest checkpoint's update, or nothing. `starts` gets a line per start with the update that it found.
newest() {
    ls "$run/checkpoints" 2>/dev/null | sed -n 's/^update-0*\([0-9][0-9]*\)$/\1/p' | sort -n | tail -n 1
}
echo "$SLURM_JOB_ID $(newest)" >> "$run/starts"

# When Slurm ends a job, it signals this shell too. The trap keeps the shell alive to learn how the ranks ended.
ended_by_slurm=no
trap 'ended_by_slurm=yes' TERM
srun --kill-on-bad-exit=1 --wait=60 --cpus-per-task=8 \
    noether train --hp cars.yaml trainer.effective_batch_size=64 \
    slurm.nodes=2 slurm.gpus_per_node=a100:4 slurm.cpus_per_task=8 slurm.mem_gb=64 slurm.timeout_min=240 slurm.slurm_partition=gpu \
    run_id=cars output_path=runs resume=auto
code=$?
trap - TERM

# The ranks exit with 75 once they have saved everything. --kill-on-bad-exit may kill some as they exit, and srun
# then returns their code; stopped.json was written before the first rank exited.
[ -e "$run/stopped.json" ] && code=75
# USR2 came while the ranks were being started, before they could catch it.
[ "$code" -eq 140 ] && code=75
[ "$code" -eq 75 ] || exit "$code"

update=$(newest)
saved="everything is saved in $run, up to update $update"
[ -n "$update" ] || saved="nothing is saved in $run yet"
# How many of the last starts found the newest update that exists now, plus 1 for the added line itself.
stalled=$({ cat "$run/starts" 2>/dev/null; echo "$SLURM_JOB_ID $update"; } | uniq -c | tail -n 1 | sed 's/^ *\([0-9]*\).*/\1/')
if [ -e "$run/cancelled" ]; then
    echo "noether: cancelled; $saved"
elif [ "$ended_by_slurm" = yes ]; then
    echo "noether: Slurm ended the job; $saved"
elif [ "$restarts" -ge 50 ]; then
    echo "noether: $saved; requeued 50 times already (slurm.max_requeues): submit it again to continue"
elif [ "$stalled" -gt 3 ]; then
    echo "noether: $saved; 3 starts in a row saved nothing new; not queued again"
else
    trap '' TERM  # A requeue signals this shell too, which still has to report the outcome.
    if said=$(scontrol requeue "$SLURM_JOB_ID" 2>&1); then
        echo "noether: $saved; queued again"
    else
        echo "noether: $saved, but Slurm refused to queue the job again: $said"
        cp "$0" "$run/job.sh"  # Slurm deletes its copy of this script with the job.
        echo "noether: to continue: cd $(printf %q "$PWD") && sbatch $(printf %q "$run/job.sh")"
    fi
fi
exit "$code"

#!/bin/bash
# A sweep over several nodes of a Slurm cluster: sbatch slurm_ray.sh. Submit it again to resume.
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --gpus-per-node=4
#SBATCH --time=12:00:00
set -eu
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address="$head:6379"
srun --nodes=1 --ntasks=1 --nodelist="$head" ray start --head --port=6379 --block &
sleep 20
if [ "$SLURM_JOB_NUM_NODES" -gt 1 ]; then
    srun --nodes=$((SLURM_JOB_NUM_NODES - 1)) --ntasks=$((SLURM_JOB_NUM_NODES - 1)) --exclude="$head" \
        ray start --address="$address" --block &
fi
sleep 20
# The folder must be on a file system that all nodes share.
srun --nodes=1 --ntasks=1 --nodelist="$head" --overlap \
    arms sweep sweep.toml --engine ray --address "$address" --gpus-per-job 0.5 --cpus-per-job 2 -o sweep

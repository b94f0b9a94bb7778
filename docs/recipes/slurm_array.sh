#!/bin/bash
# The same without Ray: every task of the array runs the whole sweep, and takes what no other has.
#SBATCH --array=0-7
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
set -eu
arms sweep sweep.toml --cpus-per-job 1 --gpus-per-job 0 -o sweep

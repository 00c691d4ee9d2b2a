#!/bin/bash
# The same program for several inputs, at most two at a time: sbatch array.sh
#SBATCH --job-name=array
#SBATCH --array=0-3%2
#SBATCH --gres=gpu:1
#SBATCH --time=00:10:00
#SBATCH --output=%x-%A-%a.out
set -euo pipefail

rates=(0.1 0.03 0.01 0.003)
rate=${rates[$SLURM_ARRAY_TASK_ID]}
echo "task $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT: rate $rate on GPU $CUDA_VISIBLE_DEVICES"
# Your program: python3 train.py --learning-rate "$rate"

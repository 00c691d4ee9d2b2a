#!/bin/bash
# One GPU for ten minutes: sbatch single-gpu.sh
#SBATCH --job-name=single-gpu
#SBATCH --gres=gpu:1
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
set -euo pipefail

nvidia-smi --list-gpus
echo "job $SLURM_JOB_ID on $SLURMD_NODENAME: CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES"
# Your program: python3 train.py

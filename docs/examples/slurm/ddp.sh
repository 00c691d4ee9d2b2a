#!/bin/bash
# PyTorch on the GPUs of two nodes, a task for each GPU: sbatch ddp.sh
# For nodes with eight GPUs set --gpus-per-node and --ntasks-per-node to 8.
# PyTorch must be on all nodes: python3 -m venv ~/torch && ~/torch/bin/pip install torch
#SBATCH --job-name=ddp
#SBATCH --nodes=2
#SBATCH --gpus-per-node=1
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:30:00
#SBATCH --output=%x-%j.out
set -euo pipefail

python=$HOME/torch/bin/python3
if [ ! -x "$python" ]; then
  python=python3
  # The PyTorch of Debian and Ubuntu is built without libuv.
  export USE_LIBUV=0
fi
# Where the tasks meet: the first node, and a port that only a job whose number differs by a multiple of 10000 has too.
MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
export MASTER_ADDR MASTER_PORT
# NCCL reports which network it uses: export NCCL_DEBUG=INFO
srun "$python" ddp.py

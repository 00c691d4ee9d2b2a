#!/bin/bash
# A program from a container image, with the job's GPU and no others: sbatch container.sh
# The workers must be in the group podman or apptainer: clusterctl docs containers.
#SBATCH --job-name=container
#SBATCH --gres=gpu:1
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
set -euo pipefail

# Another image: IMAGE=nvcr.io/nvidia/pytorch:25.01-py3 sbatch container.sh
image=${IMAGE:-docker.io/library/debian:13}
if command -v apptainer > /dev/null; then
  apptainer exec --nv "docker://$image" nvidia-smi --list-gpus
else
  # job-gpus prints the options for the job's GPUs.
  podman run --rm $(job-gpus) "$image" nvidia-smi --list-gpus
fi

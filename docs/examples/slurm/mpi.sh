#!/bin/bash
# An MPI program on two nodes: sbatch mpi.sh
# The workers must be in the group mpi: clusterctl docs slurm.
#SBATCH --job-name=mpi
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --time=00:10:00
#SBATCH --output=%x-%j.out
# On the RHEL family the compiler is in an environment module.
command -v mpicc > /dev/null || { . /etc/profile; module load mpi; }
set -euo pipefail

# Compile on the first node, then copy the program to all nodes of the job.
built=$(mktemp -d)
trap 'rm -rf "$built"' EXIT
mpicc -O2 -o "$built/program" mpi.c
program=/tmp/mpi-$SLURM_JOB_ID
sbcast "$built/program" "$program"
srun "$program"
srun --ntasks-per-node=1 rm "$program"

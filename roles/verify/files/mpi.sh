# Compiles an MPI program on each node of an allocation and runs it. Run by salloc with sh; $1 is the program's source.
set -eu
folder=/tmp/verify-$SLURM_JOB_ID
step='srun --quiet --chdir=/'
export HOME="$folder" PATH="$PATH:/usr/lib64/openmpi/bin"

trap '$step rm -rf "$folder"' EXIT
# mkdir fails if another user owns a directory of that name.
printf '%s\n' "$1" | $step sh -euc 'mkdir -m 700 "$HOME"; mpicc -x c - -o "$HOME/program"'
if srun --mpi=list 2>&1 | grep -q pmix; then
  $step --mpi=pmix "$folder/program"
else
  # A step has its own SLURM_TASKS_PER_NODE, here of one node; mpirun needs the allocation's.
  $step --overlap --nodes=1 --ntasks=1 env SLURM_TASKS_PER_NODE="$SLURM_TASKS_PER_NODE" \
    mpirun --map-by ppr:1:node --np "$SLURM_JOB_NUM_NODES" "$folder/program"
fi

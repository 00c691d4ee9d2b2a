/* Sums numbers of all ranks, in messages long enough for each protocol of a transport. Rank 0 prints the number of ranks. */
#include <mpi.h>
#include <stdio.h>

#define LENGTH (1 << 18)

static double mine[LENGTH], sum[LENGTH];

int main(int argc, char **argv) {
    int rank, size, at, wrong = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (at = 0; at < LENGTH; at++)
        mine[at] = rank + at + 1;
    MPI_Allreduce(mine, sum, LENGTH, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    for (at = 0; at < LENGTH; at++)
        wrong += sum[at] != size * (size + 1) / 2.0 + (double)size * at;
    if (rank == 0)
        printf("%d ranks, %d wrong\n", size, wrong);
    MPI_Finalize();
    return wrong != 0;
}

/* Integrate 4 / (1 + x * x) from 0 to 1, which is pi, on all tasks of a job. See mpi.sh. */
#include <mpi.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    const long steps = 10000000;
    char node[MPI_MAX_PROCESSOR_NAME];
    int rank, tasks, length;
    double part = 0, pi;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &tasks);
    MPI_Get_processor_name(node, &length);
    for (long i = rank; i < steps; i += tasks) {
        double x = (i + 0.5) / steps;
        part += 4 / (1 + x * x) / steps;
    }
    MPI_Reduce(&part, &pi, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    printf("rank %d of %d on %s: %.6f\n", rank, tasks, node, part);
    if (rank == 0)
        printf("pi: %.6f\n", pi);
    MPI_Finalize();
    return 0;
}

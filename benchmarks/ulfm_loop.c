// Ranks that go on without the dead, in the same processes (MPI 5's fault
// tolerance, Open MPI's ULFM): allreduces in a loop; when one fails, the others
// agree, revoke and shrink. benchmarks/ulfm.py compiles and runs it.
//
// ulfm_loop KILLS SEED: so many ranks kill themselves, one after the other; 0:
// somebody else does something, once. Rank 0 prints what it costs.
// clang-format off: mpi-ext.h needs the types of mpi.h
#include <mpi.h>
#include <mpi-ext.h>
// clang-format on
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

enum { kElements = 1 << 18, kBefore = 30, kAfter = 200 };

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void ReturnErrors(MPI_Comm comm) {
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
}

static int Rank(MPI_Comm comm) {
  int rank;
  MPI_Comm_rank(comm, &rank);
  return rank;
}

static int Size(MPI_Comm comm) {
  int size;
  MPI_Comm_size(comm, &size);
  return size;
}

static MPI_Comm WithoutTheDead(MPI_Comm comm) {
  MPI_Comm smaller;
  MPIX_Comm_revoke(comm);
  if (MPIX_Comm_shrink(comm, &smaller) != MPI_SUCCESS) _exit(3);
  ReturnErrors(smaller);
  int all = 1;
  MPIX_Comm_agree(smaller, &all);
  return smaller;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int kills = atoi(argv[1]);
  const int faults = kills > 0 ? kills : 1;
  srand((unsigned)atoi(argv[2]));
  int provided;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &provided);
  MPI_Comm comm;
  MPI_Comm_dup(MPI_COMM_WORLD, &comm);
  ReturnErrors(comm);
  float* const in = calloc(kElements, sizeof(float));
  float* const out = calloc(kElements, sizeof(float));
  if (Rank(comm) == 0) {
    printf("began\n");
    fflush(stdout);
  }
  int seen = 0;
  for (int step = 0; seen < faults || step < kAfter; ++step) {
    const int kill_now = seen < kills && step == kBefore;
    if (kill_now && rand() % Size(comm) == Rank(comm)) raise(SIGKILL);
    const double began = Now();
    int well = MPI_Allreduce(in, out, kElements, MPI_FLOAT, MPI_SUM, comm) ==
               MPI_SUCCESS;
    if (kill_now) MPIX_Comm_agree(comm, &well);
    if (kills == 0) usleep(1000);
    if (well) continue;
    comm = WithoutTheDead(comm);
    if (Rank(comm) == 0) {
      printf("%d ranks after %.3f s\n", Size(comm), Now() - began);
      fflush(stdout);
    }
    ++seen;
    step = 0;
  }
  if (Rank(comm) == 0) {
    printf("went on\n");
    fflush(stdout);
  }
  _exit(0);  // MPI_Finalize would wait for the dead
}

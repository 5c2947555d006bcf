// nccl_job [--ranks=N] [--way=processes|threads] [--cuda=LIBRARY]
//          [--nccl=LIBRARY] [--use_nccl=0] [--lag_mib=N] [--forget=1]
//          [--kill=RANK]
//
// Runs the whole runtime on GPUs without TensorFlow and without MPI: each
// collective that NCCL has, and some that it lacks, on tensors with exactly
// known results. Ranks are processes, or threads with a GPU each. Processes may
// share a GPU: each then claims to be on a different host (NCCL_HOSTID), as
// NCCL requires.
//
// The stream that computes the tensors lags behind the calls, on each device by
// copies of lag_mib MiB. With --forget the calls do not wait for it, and
// results must be wrong. With --kill that process ends by SIGKILL during large
// allreduces, and the other ranks must get an error.
//
// For tests/run_gpu.sh: the last line has the result. Exits with 0 on success,
// and with 3 if there is no GPU.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/loopback/loopback.h"
#include "tests/gpu/collective_list.h"
#include "tests/gpu/device_rank.h"
#include "tests/gpu/program_options.h"
#include "tests/gpu/socket_world.h"

namespace tf_hvd {
namespace {

constexpr int kChildFailed = 1;

std::string Many(int count, const char* one, const char* several) {
  return std::to_string(count) + " " + (count == 1 ? one : several);
}

GpuAccess AccessTo(const GpuLibraries& libraries, int gpu, bool shared) {
  GpuAccess access = AccessOf(libraries, gpu, libraries.no_nccl, true);
  access.options.shared_devices = shared;
  // Less than the largest tensors, which are sent in pieces.
  access.options.staging_bytes = size_t{1} << 20;
  return access;
}

using Work = std::function<Status(DeviceRank&)>;

Work WorkOf(const ProgramOptions& options) {
  const auto lag = static_cast<size_t>(options.Number("lag_mib", 256)) << 20;
  const bool forgets = options.Number("forget", 0) != 0;
  const int killed = options.Number("kill", -1);
  return [=](DeviceRank& rank) {
    TF_HVD_RETURN_IF_ERROR(rank.side()->LagBy(lag));
    if (forgets) rank.ForgetProducers();
    if (killed < 0) return CheckCollectives(rank);
    return KillAmidAllreduces(rank, killed);
  };
}

Status RunThreads(const GpuLibraries& libraries, int ranks, const Work& work) {
  LoopbackOptions options;
  options.nodes = {ranks};
  options.gpu = [&](int rank) { return AccessTo(libraries, rank, false); };
  return RunDeviceRanks(
      MakeLoopback(options), libraries.cuda, [](int rank) { return rank; },
      work);
}

// One rank's process. The driver is opened here, because it does not survive a
// fork.
int RunRank(const ProgramOptions& options, SocketMesh* mesh, int rank,
            int gpus) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  const bool shared = mesh->ranks() > gpus;
  if (shared) {
    const std::string host = "tf_hvd-" + std::to_string(rank);
    setenv("NCCL_HOSTID", host.c_str(), 1);
  }
  const GpuLibraries libraries = options.Open();
  const int gpu = rank % gpus;
  std::vector<std::unique_ptr<World>> worlds;
  worlds.push_back(
      MakeSocketWorld(mesh, rank, AccessTo(libraries, gpu, shared)));
  const Status status = RunDeviceRanks(
      std::move(worlds), libraries.cuda, [gpu](int) { return gpu; },
      WorkOf(options));
  if (!status.ok()) std::printf("%s\n", status.message().c_str());
  std::fflush(stdout);
  return status.ok() ? 0 : kChildFailed;
}

Status RunProcesses(const ProgramOptions& options, int ranks, int gpus) {
  SocketMesh mesh(ranks);
  std::vector<pid_t> children;
  std::fflush(stdout);
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child < 0) return Aborted("fork failed");
    if (child == 0) std::exit(RunRank(options, &mesh, rank, gpus));
    children.push_back(child);
  }
  mesh.CloseAll();
  const int killed = options.Number("kill", -1);
  std::string failed;
  for (size_t rank = 0; rank < children.size(); ++rank) {
    int ended = 0;
    waitpid(children[rank], &ended, 0);
    const bool as_asked =
        static_cast<int>(rank) == killed ? WIFSIGNALED(ended) : ended == 0;
    if (as_asked) continue;
    failed += " " + std::to_string(rank);
    failed += WIFSIGNALED(ended)
                  ? " (signal " + std::to_string(WTERMSIG(ended)) + ")"
                  : "";
  }
  return failed.empty() ? Status::Ok() : Aborted("failed: ranks" + failed);
}

// Runs the search in a separate process: once a process has used the driver,
// forked children cannot use it. Returns the exit code.
int Look(const ProgramOptions& options, int* gpus) {
  int pipe_ends[2];
  if (pipe(pipe_ends) != 0) return 1;
  std::fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    const GpuLibraries libraries = options.Open();
    std::string reason;
    const int count = ProgramOptions::Count(libraries, &reason);
    if (count == 0) std::printf("no GPU: %s\n", reason.c_str());
    if (count > 0) {
      std::printf(
          "%s\n",
          libraries.nccl == nullptr
              ? ("no NCCL: " + libraries.no_nccl).c_str()
              : ("NCCL " + std::to_string(libraries.nccl_version)).c_str());
    }
    std::fflush(stdout);
    const ssize_t written = write(pipe_ends[1], &count, sizeof(count));
    _exit(written == sizeof(count) ? 0 : 1);
  }
  int ended = 0;
  waitpid(child, &ended, 0);
  const bool complete =
      ended == 0 && read(pipe_ends[0], gpus, sizeof(*gpus)) == sizeof(*gpus);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
  if (!complete) return 1;
  return *gpus > 0 ? 0 : kNoGpu;
}

int Main(const ProgramOptions& options) {
  int gpus = 0;
  const int code = Look(options, &gpus);
  if (code != 0) return code;
  const int ranks = options.Number("ranks", gpus > 1 ? gpus : 2);
  const bool threads = options.Text("way", "processes") == "threads";
  if (ranks < 1 || (threads && ranks > gpus)) {
    std::printf("%d threads need as many GPUs\n", ranks);
    return kWrongUse;
  }
  const Status status = threads
                            ? RunThreads(options.Open(), ranks, WorkOf(options))
                            : RunProcesses(options, ranks, gpus);
  const std::string on = Many(gpus < ranks ? gpus : ranks, "GPU", "GPUs");
  const std::string who = (threads ? Many(ranks, "thread", "threads")
                                   : Many(ranks, "process", "processes")) +
                          " on " + on;
  if (options.Number("kill", -1) >= 0) {
    return Report(status,
                  "one rank killed of " + who + ": the others got errors");
  }
  return Report(status, std::to_string(CollectiveCount()) + " collectives, " +
                            who + ": all exact");
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  // Each line is written at once, including NCCL's, in case the job hangs.
  static_cast<void>(std::setvbuf(stdout, nullptr, _IOLBF, 0));
  return tf_hvd::Main(tf_hvd::ProgramOptions(argc, argv));
}

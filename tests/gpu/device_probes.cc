// device_probes [--probe=NAME] [--cuda=LIBRARY] [--nccl=LIBRARY] [--device=N]
//               [--repetitions=N] [--megabytes=N] [--wait_ms=N]
//               [--ptx=CAPABILITY]
//
// Measures the properties of a GPU that the design of runtime/transport/gpu
// depends on: the cost of calls, their effect on other threads, and which of
// them block. Prints a line for each probe; names of figures end with their
// unit. --ptx prints the kernel that keeps a stream busy; 90 selects compute
// capability 9.0.
//
// Each probe runs in a separate process (`calls` in two), so that probes cannot
// affect each other through the driver.
//
// For tests/gpu/first_hour.sh: exits with 0 if all requested probes were made
// or are impossible here, and with 3 if there is no GPU.
#include "tests/gpu/device_probes.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

namespace tf_hvd {
namespace {

using SingleProcess = Status (*)(const ProbeSide& side, Figures* figures);

struct Probe {
  const char* name;
  SingleProcess single;  // null: the probe needs two processes
};

constexpr Probe kProbes[] = {{"calls", nullptr},
                             {"queries", ProbeQueries},
                             {"host_function", ProbeHostFunction},
                             {"copies", ProbeCopies},
                             {"waits", ProbeWaits}};

// Makes the probe in this process and prints its result.
int Make(const Probe& probe, const ProgramOptions& options, int rank,
         int peer) {
  const GpuLibraries libraries = options.Open();
  std::string reason;
  if (ProgramOptions::Count(libraries, &reason) == 0) {
    if (rank == 0) std::printf("no GPU: %s\n", reason.c_str());
    return kNoGpu;
  }
  Figures figures(probe.name);
  Status status;
  if (probe.single == nullptr) {
    status = ProbeCalls(options, libraries, rank, peer, &figures);
  } else {
    std::unique_ptr<ProbeSide> side;
    status =
        ProbeSide::Open(options, libraries, options.Number("device", 0), &side);
    if (status.ok()) status = side->LoadSpin();
    if (status.ok()) status = probe.single(*side, &figures);
  }
  if (!status.ok()) figures.NotHere(status.message());
  if (rank == 0 || !status.ok()) figures.Print();
  return status.ok() ? 0 : 1;
}

// A child's exit code, or the one for a signal.
int CodeOf(int ended) {
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

// If one of several processes fails, the others are ended: they may be waiting
// for it.
int Run(const Probe& probe, const ProgramOptions& options) {
  const int processes = probe.single == nullptr ? 2 : 1;
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) != 0) return 1;
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < processes; ++rank) {
    const pid_t child = fork();
    if (child < 0) return 1;
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      close(ends[1 - rank]);
      std::exit(Make(probe, options, rank, ends[rank]));
    }
    children.push_back(child);
  }
  for (const int end : ends) close(end);
  int code = 0;
  while (!children.empty()) {
    int ended = 0;
    const pid_t gone = wait(&ended);
    children.erase(std::find(children.begin(), children.end(), gone));
    if (code == 0) code = CodeOf(ended);
    if (code == 0 || code == kNoGpu) continue;
    for (const pid_t other : children) kill(other, SIGTERM);
  }
  return code;
}

int Main(const ProgramOptions& options) {
  const int ptx = options.Number("ptx", 0);
  if (ptx > 0) {
    std::printf("%s", SpinCode(ptx).c_str());
    return 0;
  }
  const std::string asked = options.Text("probe", "");
  int made = 0;
  int failed = 0;
  for (const Probe& probe : kProbes) {
    if (!asked.empty() && asked != probe.name) continue;
    const int code = Run(probe, options);
    if (code == kNoGpu) return kNoGpu;
    ++made;
    if (code != 0) {
      std::printf("%s failed with %d\n", probe.name, code);
      ++failed;
    }
  }
  if (made == 0) {
    std::printf("unknown probe %s\n", asked.c_str());
    return kWrongUse;
  }
  std::printf("%d of %d probes made\n", made - failed, made);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  return tf_hvd::Main(tf_hvd::ProgramOptions(argc, argv));
}

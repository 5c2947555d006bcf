// device_probes [--probe=NAME] [--cuda=LIBRARY] [--nccl=LIBRARY] [--device=N]
//               [--repetitions=N] [--megabytes=N] [--wait_ms=N]
//               [--ptx=CAPABILITY]
//
// Asks a GPU what the design of runtime/transport/gpu depends on: what calls
// cost, what they do to other threads, and which of them wait. Of each probe a
// line; names of figures end with their unit.
// --ptx prints the kernel that keeps a stream busy, for 90 the one of 9.0.
//
// A probe runs in a process of its own, `calls` in two: what one does to the
// driver is no other's concern.
//
// For tests/gpu/first_hour.sh: 0 if all that was asked for was measured, or
// cannot be here; 3 if there is no GPU.
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

using Alone = Status (*)(const ProbeSide& side, Figures* figures);

struct Probe {
  const char* name;
  Alone alone;  // null: it takes two processes
};

constexpr Probe kProbes[] = {{"calls", nullptr},
                             {"queries", ProbeQueries},
                             {"host_function", ProbeHostFunction},
                             {"copies", ProbeCopies},
                             {"waits", ProbeWaits}};

// This process makes the probe, and tells.
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
  if (probe.alone == nullptr) {
    status = ProbeCalls(options, libraries, rank, peer, &figures);
  } else {
    std::unique_ptr<ProbeSide> side;
    status =
        ProbeSide::Open(options, libraries, options.Number("device", 0), &side);
    if (status.ok()) status = side->LoadSpin();
    if (status.ok()) status = probe.alone(*side, &figures);
  }
  if (!status.ok()) figures.NotHere(status.message());
  if (rank == 0 || !status.ok()) figures.Print();
  return status.ok() ? 0 : 1;
}

// A child's, or what a signal makes of it.
int CodeOf(int ended) {
  return WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
}

// Of several processes one that fails ends the others, which may wait for it.
int Run(const Probe& probe, const ProgramOptions& options) {
  const int processes = probe.alone == nullptr ? 2 : 1;
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
    std::printf("there is no probe %s\n", asked.c_str());
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

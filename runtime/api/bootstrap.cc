#include "runtime/api/bootstrap.h"

#include <unistd.h>

#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/api/init_watch.h"
#include "runtime/api/set_calls.h"
#include "runtime/base/config.h"
#include "runtime/base/forks.h"
#include "runtime/base/processes.h"
#include "runtime/execution/progress_engine.h"
#include "runtime/transport/mpi/world.h"

namespace tf_hvd {
namespace {

std::vector<std::string> Lines(const char* text) {
  std::vector<std::string> lines;
  std::string line;
  for (const char* c = text == nullptr ? "" : text;; ++c) {
    if (*c != '\n' && *c != '\0') {
      line += *c;
      continue;
    }
    if (!line.empty()) lines.push_back(std::exchange(line, ""));
    if (*c == '\0') return lines;
  }
}

std::vector<int32_t> Numbers(const int* numbers, int count) {
  return numbers == nullptr ? std::vector<int32_t>()
                            : std::vector<int32_t>(numbers, numbers + count);
}

WorldOptions OptionsOf(const tf_hvd_init_options& given) {
  WorldOptions options;
  options.library_dir = given.library_dir == nullptr ? "" : given.library_dir;
  options.candidates = Lines(given.mpi_candidates);
  if (given.communicator != nullptr) {
    options.members.communicator = *given.communicator;
  } else if (given.ranks != nullptr) {
    options.members.ranks = Numbers(given.ranks, given.rank_count);
  }
  options.settings = EqualSettings();
  for (const std::string& line : Lines(given.settings)) {
    const size_t end = line.find('=');
    if (end == std::string::npos) continue;
    options.settings.emplace_back(line.substr(0, end), line.substr(end + 1));
  }
  return options;
}

// The ranks of the launcher's count that init waits for. MPI_Init waits for all
// of them; who finds MPI running waits for the job's.
std::vector<int> NeededRanks(const tf_hvd_init_options& given,
                             const WorldOptions& options) {
  if (given.ranks != nullptr && MpiIsRunning(SearchOf(options))) {
    return Numbers(given.ranks, given.rank_count);
  }
  std::vector<int> all(static_cast<size_t>(options.launch.size));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// This process may have the launcher's variables from a rank: it would come to
// the job in that rank's place.
Status CheckNotStartedByARank(const LaunchInfo& launch) {
  if (launch.size == 1) return Status::Ok();
  const std::string rank = "rank " + std::to_string(launch.rank) + " of " +
                           std::to_string(launch.size);
  if (InForkedChild()) {
    return FailedPrecondition(
        "init() in process " + std::to_string(getpid()) +
        ", which was forked from " + rank +
        " after that had called init(): it cannot take its place in the job. "
        "To run it on its own, start it as a new program (subprocess, or "
        "multiprocessing with \"spawn\") with TF_HVD_ALONE=1 in its "
        "environment");
  }
  const pid_t above = RankAbove(launch.rank_mark, ProgressEngine::kThreadName);
  if (above == 0) return Status::Ok();
  return FailedPrecondition(
      "process " + std::to_string(getpid()) + " was started by " + rank +
      " (process " + std::to_string(above) +
      "), inherited that rank's launcher variables and cannot take its place "
      "in the job. To run it on its own (rank 0 of 1), set TF_HVD_ALONE=1 in "
      "its environment (env= of subprocess). If multiprocessing started it, "
      "the main script runs again in it: put hvd.init() and the training below "
      "'if __name__ == \"__main__\":'");
}

// The job's world; where ranks do not come, the process is ended after the
// stall limit.
Status MakeWatchedWorld(const WorldOptions& options,
                        const std::vector<int>& needed,
                        std::unique_ptr<World>* world, MpiInfo* mpi) {
  std::optional<InitWatch> watch;
  if (needed.size() > 1) watch.emplace(options.config, options.launch, needed);
  return MakeWorld(options, world, mpi);
}

}  // namespace

Status FindMpi(const tf_hvd_init_options& given, MpiInfo* mpi) {
  WorldOptions options = OptionsOf(given);
  TF_HVD_RETURN_IF_ERROR(ReadConfig(&options.config));
  TF_HVD_RETURN_IF_ERROR(ReadLaunchInfo(&options.launch));
  return MpiSession::Find(SearchOf(options), mpi);
}

Status JoinJob(const tf_hvd_init_options& given, Joined* joined) {
  WorldOptions options = OptionsOf(given);
  TF_HVD_RETURN_IF_ERROR(ReadConfig(&options.config));
  TF_HVD_RETURN_IF_ERROR(ReadLaunchInfo(&options.launch));
  TF_HVD_RETURN_IF_ERROR(CheckNotStartedByARank(options.launch));
  WatchForks();
  if (options.launch.size > 1) {
    joined->launcher = std::make_unique<LauncherWatch>(options.launch);
  }
  std::unique_ptr<World> world;
  TF_HVD_RETURN_IF_ERROR(MakeWatchedWorld(options, NeededRanks(given, options),
                                          &world, &joined->mpi));
  auto runtime = std::make_shared<Runtime>(options.config, std::move(world));
  if (runtime->topology().size > 1) {
    const Status agreed =
        AgreeOnSets(runtime.get(), Numbers(given.sets, given.set_length));
    if (!agreed.ok()) {
      runtime->Shutdown("init() failed", false);
      return agreed;
    }
  }
  joined->runtime = std::move(runtime);
  return Status::Ok();
}

}  // namespace tf_hvd

#include "runtime/api/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/config.h"
#include "base/forks.h"
#include "base/processes.h"
#include "runtime/api/init_watch.h"
#include "runtime/api/set_calls.h"
#include "runtime/execution/progress_engine.h"

namespace tf_hvd {
namespace {

// Reads the settings from the environment.
Status ReadEnvironment(WorldOptions* options) {
  TF_HVD_RETURN_IF_ERROR(ReadConfig(&options->config));
  TF_HVD_RETURN_IF_ERROR(ReadLaunchInfo(&options->launch));
  const Settings equal = EqualSettings();
  options->settings.insert(options->settings.begin(), equal.begin(),
                           equal.end());
  return Status::Ok();
}

// Number of ranks that init waits for. MPI_Init waits for all ranks of the
// launcher; if MPI is already running, init waits for the job's ranks only.
int NeededRanks(const WorldOptions& options) {
  const auto& ranks = options.members.ranks;
  const bool some = ranks.has_value() && MpiIsRunning(SearchOf(options));
  return some ? static_cast<int>(ranks->size()) : options.launch.size;
}

// This process may have inherited the launcher's variables from a rank, and
// would then take that rank's place in the job.
Status CheckNotStartedByARank(const LaunchInfo& launch) {
  if (launch.size == 1) return Status::Ok();
  const std::string rank = "rank " + std::to_string(launch.rank) + " of " +
                           std::to_string(launch.size);
  if (InForkedChild()) {
    return FailedPrecondition(
        "init() in process " + std::to_string(getpid()) +
        ", which was forked from " + rank +
        " after the rank had called init(): it cannot take the rank's place in "
        "the job. To run it independently, start it as a new program "
        "(subprocess, or multiprocessing with \"spawn\") with TF_HVD_ALONE=1 "
        "in its "
        "environment");
  }
  const pid_t above = RankAbove(launch.rank_mark, ProgressEngine::kThreadName);
  if (above == 0) return Status::Ok();
  return FailedPrecondition(
      "process " + std::to_string(getpid()) + " was started by " + rank +
      " (process " + std::to_string(above) +
      "), inherited that rank's launcher variables and cannot take its place "
      "in the job. To run it independently (rank 0 of 1), set TF_HVD_ALONE=1 "
      "in its environment (env= of subprocess). If multiprocessing started it, "
      "it runs the main script again: put hvd.init() and the training below "
      "'if __name__ == \"__main__\":'");
}

// Makes the job's world. If other ranks do not arrive, the process is ended
// after the stall limit.
Status MakeWatchedWorld(const WorldOptions& options, int needed,
                        std::unique_ptr<World>* world, MpiInfo* mpi) {
  std::optional<InitWatch> watch;
  if (needed > 1) watch.emplace(options.config, options.launch, needed - 1);
  return MakeWorld(options, world, mpi);
}

// A rank runs without a recorder if no file can be created.
std::unique_ptr<Recorder> MakeRecorder(const WorldOptions& options,
                                       const Topology& topology) {
  const LaunchInfo& launch = options.launch;
  const RecordingPlace place = {launch.recording, launch.recorded_job,
                                options.config.dump_dir};
  RecordingRank rank;
  rank.rank = topology.rank;
  rank.size = topology.size;
  rank.launched = launch.rank;
  const auto& members = options.members.ranks;
  if (members.has_value() && !members->empty()) rank.part = members->front();
  rank.host = topology.hosts[static_cast<size_t>(topology.rank)];
  rank.job = launch.job;
  if (rank.job.empty()) {
    rank.job = std::to_string(launch.size == 1 ? getpid() : getppid());
  }
  std::string why;
  auto recorder = Recorder::Make(place, rank, &why);
  if (recorder == nullptr && options.config.log_level <= LogLevel::kWarning) {
    WriteLog(LogLevel::kWarning, topology.RankText(topology.rank),
             "calls of this rank are not recorded, because the flight recorder "
             "cannot start: " +
                 why);
  }
  return recorder;
}

// Training continues if a file cannot be written.
void StartFiles(const Config& config, Runtime* runtime) {
  std::vector<Status> started;
  if (!config.timeline.empty()) {
    started.push_back(
        runtime->StartTimeline(config.timeline, config.timeline_marks_cycles));
  }
  if (!config.metrics.empty()) {
    started.push_back(runtime->StartMetricsFile(config.metrics));
  }
  const Topology& topology = runtime->topology();
  for (const Status& one : started) {
    if (one.ok() || config.log_level > LogLevel::kWarning) continue;
    WriteLog(LogLevel::kWarning, topology.RankText(topology.rank),
             std::string(one.message()));
  }
}

}  // namespace

Status FindMpi(WorldOptions options, MpiInfo* mpi) {
  TF_HVD_RETURN_IF_ERROR(ReadEnvironment(&options));
  return MpiSession::Find(SearchOf(options), mpi);
}

Status StartJob(WorldOptions options, const JobOptions& job_options,
                StartedJob* job) {
  TF_HVD_RETURN_IF_ERROR(ReadEnvironment(&options));
  TF_HVD_RETURN_IF_ERROR(CheckNotStartedByARank(options.launch));
  WatchForks();
  if (options.launch.size > 1) {
    job->launcher = std::make_unique<LauncherWatch>(options.launch);
  }
  std::unique_ptr<World> world;
  TF_HVD_RETURN_IF_ERROR(
      MakeWatchedWorld(options, NeededRanks(options), &world, &job->mpi));
  auto recorder = MakeRecorder(options, world->topology());
  Config config = options.config;
  for (int64_t* limit :
       {&config.stall_warn_ns, &config.stall_fail_ns, &config.stall_stuck_ns}) {
    *limit /= std::max(job_options.hurry, 1);
  }
  auto runtime = MakeRuntime(config, std::move(world), std::move(recorder),
                             job_options.main_thread);
  if (runtime->topology().size > 1) {
    const Status agreed = AgreeOnSets(runtime.get(), job_options.sets);
    if (!agreed.ok()) {
      runtime->Shutdown("init() failed", false);
      return agreed;
    }
  }
  StartFiles(options.config, runtime.get());
  job->runtime = std::move(runtime);
  return Status::Ok();
}

}  // namespace tf_hvd

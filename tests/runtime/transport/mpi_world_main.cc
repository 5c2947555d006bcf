// One rank of a job, run by mpi_world_test.sh under each launcher:
//   mpi_world_main <mode> <folder of the shims>
// Prints "ok: ..." on every rank, or what went wrong, and exits with 1.
#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/config.h"
#include "runtime/agreement/tree.h"
#include "runtime/transport/mpi/world.h"
#include "tests/runtime/transport/collectives.h"

namespace tf_hvd {
namespace {

using std::chrono::seconds;
using std::chrono::steady_clock;

struct Job {
  Config config;
  LaunchInfo launch;
  std::string shims;
  MpiMembers members;
  MpiInfo info;
  std::unique_ptr<World> world;
};

[[noreturn]] void Fail(const Job& job, const std::string& text) {
  std::printf("FAILED: rank %d: %s\n", job.launch.rank, text.c_str());
  std::fflush(stdout);
  _exit(1);
}

void Check(const Job& job, bool good, const std::string& text) {
  if (!good) Fail(job, text);
}

void Check(const Job& job, const Status& status) {
  if (!status.ok()) Fail(job, status.message());
}

Status Make(Job* job) {
  return MakeWorld(
      {job->config, job->launch, job->shims, {}, job->members, {}, {}},
      &job->world, &job->info);
}

// The byte at `place` of the stream from one rank to another.
char Expected(int from, int to, size_t place) {
  return static_cast<char>(place * 2654435761u + place / 251 +
                           static_cast<size_t>(from * 31 + to * 17));
}

// One edge's traffic: `total` bytes out, `total` bytes in.
class Stream {
 public:
  Stream(int mine, int other, Edge* edge)
      : mine_(mine), other_(other), edge_(edge) {}

  void Step(const Job& job) {
    char piece[5000];
    size_t size = std::min(sizeof(piece), kTotal - sent_);
    for (size_t i = 0; i < size; ++i) {
      piece[i] = Expected(mine_, other_, sent_ + i);
    }
    sent_ += edge_->Write(piece, size);
    edge_->Flush();
    size = edge_->Read(piece, sizeof(piece));
    for (size_t i = 0; i < size; ++i) {
      Check(job, piece[i] == Expected(other_, mine_, received_ + i),
            "a wrong byte from rank " + std::to_string(other_));
    }
    received_ += size;
  }

  bool done() const { return sent_ == kTotal && received_ == kTotal; }

 private:
  static constexpr size_t kTotal = 1'000'003;

  const int mine_;
  const int other_;
  Edge* const edge_;
  size_t sent_ = 0;
  size_t received_ = 0;
};

void PushThroughEdges(const Job& job) {
  const Topology& topology = job.world->topology();
  const TreePlace place =
      PlaceOf(topology.rank, topology.nodes, topology.fan_out);
  std::vector<int> neighbours = place.children;
  if (place.parent >= 0) neighbours.push_back(place.parent);
  std::vector<Stream> streams;
  for (const int other : neighbours) {
    Check(job, job.world->edge(other) != nullptr, "no edge to a neighbour");
    streams.emplace_back(topology.rank, other, job.world->edge(other));
  }
  bool done = false;
  while (!done) {
    done = true;
    for (Stream& stream : streams) {
      stream.Step(job);
      done = done && stream.done();
    }
    std::this_thread::yield();
  }
}

// Gives up on the job's abort, and after a time that only a bug can reach.
Collectives::Meanwhile MakeMeanwhile(const Job& job) {
  const auto limit = steady_clock::now() + seconds(30);
  return [&job, limit]() {
    if (steady_clock::now() > limit) return Internal("the test's time is up");
    const auto record = job.world->PollAbort();
    return record ? Aborted(record->text) : Status::Ok();
  };
}

void CheckAllreduce(const Job& job) {
  const Topology& topology = job.world->topology();
  std::vector<int> ranks(static_cast<size_t>(topology.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  Collectives data(job.world->backends());
  for (const int64_t count : {1, 1000, 1'000'003}) {
    std::vector<float> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] =
          static_cast<float>(static_cast<int>(i % 1000) + topology.rank);
    }
    const Status status =
        data.Allreduce(ranks, {{values.data(), values.data(), count}},
                       ReduceOptions(), MakeMeanwhile(job));
    Check(job, status);
    const int sum_of_ranks = topology.size * (topology.size - 1) / 2;
    for (size_t i = 0; i < values.size(); ++i) {
      const int sum = static_cast<int>(i % 1000) * topology.size + sum_of_ranks;
      Check(job, values[i] == static_cast<float>(sum), "a wrong sum");
    }
  }
}

void CheckTopology(const Job& job) {
  const Topology& topology = job.world->topology();
  if (!job.members.ranks.has_value()) {
    Check(job, topology.rank == job.launch.rank, "a rank of its own");
    Check(job, topology.size == job.launch.size, "a size of its own");
  }
  const int per_node = job.config.ranks_per_node == 0
                           ? topology.size
                           : job.config.ranks_per_node;
  Check(job, topology.LocalRank() == topology.rank % per_node, "local rank");
  Check(job, topology.CrossRank() == topology.rank / per_node, "cross rank");
  Check(job,
        static_cast<int>(topology.hosts.size()) == topology.size &&
            !topology.hosts.front().empty(),
        "hosts");
}

void Collectives(Job* job) {
  Check(*job, Make(job));
  CheckTopology(*job);
  Check(*job, !job->info.version.empty(), "no version");
  // Those of the Python packages are not.
  Check(*job, !job->info.cuda_aware, "it claims to be CUDA-aware");
  PushThroughEdges(*job);
  CheckAllreduce(*job);
  Check(*job, !job->world->PollAbort(), "an abort out of nothing");
  job->world->Finalize(true);
  job->world.reset();
  std::printf("ok: rank %d of %d\n", job->launch.rank, job->launch.size);
}

// The even ranks make one job, backwards, and the odd ones another, at the same
// time: nothing may depend on MPI_COMM_WORLD or on what the launcher says.
void Part(Job* job) {
  std::vector<int> ranks;
  for (int rank = 0; rank < job->launch.size; ++rank) {
    if (rank % 2 == job->launch.rank % 2) ranks.insert(ranks.begin(), rank);
  }
  job->members.ranks = ranks;
  Check(*job, Make(job));
  CheckTopology(*job);
  const Topology& topology = job->world->topology();
  Check(*job, topology.size == static_cast<int>(ranks.size()), "size");
  Check(*job, ranks[static_cast<size_t>(topology.rank)] == job->launch.rank,
        "not the list's order");
  PushThroughEdges(*job);
  CheckAllreduce(*job);
  job->world->Finalize(true);
  job->world.reset();
  std::printf("ok: rank %d of %d\n", job->launch.rank, job->launch.size);
}

// The last rank is in nobody's list. It may correct that: its MPI runs on.
void Outsider(Job* job) {
  const int last = job->launch.size - 1;
  std::vector<int> others(static_cast<size_t>(last));
  std::iota(others.begin(), others.end(), 0);
  for (const std::vector<int>& wrong :
       {std::vector<int>{0, 0}, {-1}, {last + 1}, {}}) {
    if (job->launch.rank != last) break;
    job->members.ranks = wrong;
    const Status status = Make(job);
    Check(*job, status.code() == StatusCode::kInvalidArgument,
          "a wrong list was taken: " + status.message());
  }
  job->members.ranks = others;
  const Status status = Make(job);
  if (job->launch.rank != last) {
    Check(*job, status);
    CheckAllreduce(*job);
  } else {
    Check(*job, status.code() == StatusCode::kInvalidArgument, "no error");
    const std::string text = "called by rank " + std::to_string(last) +
                             " of MPI_COMM_WORLD, which it does not name";
    Check(*job, status.message().find(text) != std::string::npos,
          status.message());
    job->members.ranks = std::vector<int>{last};
    Check(*job, Make(job));
    Check(*job, job->world->topology().size == 1, "size");
  }
  job->world->Finalize(true);
  job->world.reset();
  std::printf("ok: rank %d of %d\n", job->launch.rank, job->launch.size);
}

// The last rank has given up: it still finalizes MPI, or the launcher would
// take its exit for a failure.
void GivesUp(Job* job) {
  const int last = job->launch.size - 1;
  std::vector<int> others(static_cast<size_t>(last));
  std::iota(others.begin(), others.end(), 0);
  job->members.ranks = others;
  const Status status = Make(job);
  Check(*job, status.ok() == (job->launch.rank != last), status.message());
  if (status.ok()) {
    CheckAllreduce(*job);
    job->world->Finalize(true);
    job->world.reset();
  } else {
    MpiSession::FinalizeLeftover();
  }
  std::printf("ok: rank %d of %d\n", job->launch.rank, job->launch.size);
}

// The last rank is stopped and never comes to MPI_Finalize: the other one ends,
// MPI's own exit handlers included.
void Stopped(Job* job) {
  Check(*job, Make(job));
  CheckAllreduce(*job);
  if (job->launch.rank == job->launch.size - 1) {
    kill(getpid(), SIGSTOP);
    while (true) pause();  // the launcher lets it go on before it ends it
  }
  job->world->Finalize(true);
  job->world.reset();
  std::printf("ok: rank %d of %d\n", job->launch.rank, job->launch.size);
}

// Waits for the record that ends the job, or of that class, and what follows
// it.
AbortRecord AwaitAbort(const Job& job,
                       std::optional<uint32_t> of_class = std::nullopt) {
  const auto limit = steady_clock::now() + seconds(60);
  while (steady_clock::now() < limit) {
    const auto record = job.world->PollAbort();
    if (record &&
        record->error_class == of_class.value_or(record->error_class)) {
      const auto passed_on = steady_clock::now() + std::chrono::seconds(1);
      while (steady_clock::now() < passed_on) {
        static_cast<void>(job.world->PollAbort());
        job.world->doorbell()->Wait(1'000'000);
      }
      return *job.world->PollAbort();
    }
    job.world->doorbell()->Wait(20'000'000);
  }
  Fail(job, "nobody told of the death");
}

// The last rank is killed, and all others hear of it.
void Death(Job* job) {
  Check(*job, Make(job));
  const int victim = job->launch.size - 1;
  if (job->launch.rank == victim) {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    kill(getpid(), SIGKILL);
  }
  const AbortRecord record = AwaitAbort(*job);
  Check(*job, record.error_class == AbortRecord::kDied,
        "class: " + record.text);
  Check(*job, record.rank == victim, "rank: " + record.text);
  const std::string start = "rank " + std::to_string(victim) + " (";
  Check(*job, record.text.compare(0, start.size(), start) == 0, record.text);
  job->world->Finalize(false);
  job->world.reset();
  std::printf("ok: rank %d heard: %s\n", job->launch.rank, record.text.c_str());
  std::fflush(stdout);
  // The launcher waits for nobody; MPI's own exit handlers would.
  _exit(0);
}

// The last rank raises, on a thread of its own; all hear of it.
void Raise(Job* job) {
  Check(*job, Make(job));
  const int raiser = job->launch.size - 1;
  if (job->launch.rank == raiser) {
    std::thread([job, raiser] {
      job->world->RaiseAbort({AbortRecord::kStalled, raiser, "stalled"});
      job->world->RaiseAbort({AbortRecord::kFailed, raiser, "failed"});
    }).join();
  }
  const AbortRecord record = AwaitAbort(*job, AbortRecord::kFailed);
  Check(*job,
        record.error_class == AbortRecord::kFailed && record.text == "failed",
        record.text);
  job->world->Finalize(false);
  std::printf("ok: rank %d heard: %s\n", job->launch.rank, record.text.c_str());
  std::fflush(stdout);
  _exit(0);
}

// The library does not belong to the launcher.
void Refused(Job* job) {
  const Status status = Make(job);
  Check(*job, status.code() == StatusCode::kFailedPrecondition,
        "not refused: " + status.message());
  const std::string counts = "rank " + std::to_string(job->launch.rank) +
                             " of " + std::to_string(job->launch.size);
  for (const std::string& part :
       {counts, std::string("TF_HVD_MPI_LIBRARY"), std::string("tf_hvd["),
        job->config.mpi_library}) {
    Check(*job, status.message().find(part) != std::string::npos,
          "no '" + part + "' in: " + status.message());
  }
  std::printf("ok: rank %d was told: %s\n", job->launch.rank,
              status.message().c_str());
}

// Without a launcher there is one rank, and no MPI is opened.
void Alone(Job* job) {
  Check(*job, Make(job));
  Check(*job, job->world->topology().size == 1, "size");
  Check(*job, job->info.version.empty(), "an MPI: " + job->info.version);
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    Check(*job, line.find("libmpi") == std::string::npos, line);
  }
  job->world->Finalize(true);
  std::printf("ok: alone\n");
}

// Somebody else has initialised MPI: it is used, and still runs at the end.
void Reuse(Job* job) {
  void* mpi = dlopen(job->config.mpi_library.c_str(), RTLD_NOW | RTLD_GLOBAL);
  Check(*job, mpi != nullptr, "no MPI");
  const auto init = reinterpret_cast<int (*)(int*, char***, int, int*)>(
      dlsym(mpi, "MPI_Init_thread"));
  const auto finalized =
      reinterpret_cast<int (*)(int*)>(dlsym(mpi, "MPI_Finalized"));
  const auto finalize = reinterpret_cast<int (*)()>(dlsym(mpi, "MPI_Finalize"));
  constexpr int kMultiple = 3;  // in both families
  int provided = 0;
  Check(*job, init(nullptr, nullptr, kMultiple, &provided) == 0, "MPI_Init");
  for (int round = 0; round < 2; ++round) {
    Check(*job, Make(job));
    Check(*job, job->info.threads_multiple == (provided == kMultiple),
          "thread level");
    PushThroughEdges(*job);
    job->world->Finalize(true);
    job->world.reset();
  }
  int ended = 1;
  Check(*job, finalized(&ended) == 0 && ended == 0, "MPI was finalized");
  Check(*job, finalize() == 0, "MPI_Finalize");
  std::printf("ok: rank %d\n", job->launch.rank);
}

int Main(const std::string& mode, const std::string& shims) {
  Job job;
  job.shims = shims;
  Check(job, ReadConfig(&job.config));
  Check(job, ReadLaunchInfo(&job.launch));
  const std::map<std::string, void (*)(Job*)> modes = {
      {"collectives", Collectives},
      {"part", Part},
      {"outsider", Outsider},
      {"gives_up", GivesUp},
      {"stopped", Stopped},
      {"death", Death},
      {"raise", Raise},
      {"alone", Alone},
      {"reuse", Reuse},
      {"refused", Refused}};
  const auto found = modes.find(mode);
  if (found == modes.end()) Fail(job, "no such mode: " + mode);
  found->second(&job);
  return 0;
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: mpi_world_main MODE SHIM_FOLDER\n");
    return 2;
  }
  return tf_hvd::Main(argv[1], argv[2]);
}

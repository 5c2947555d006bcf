// One rank of a job, run by kills_test.sh:
//   kills_main dies|waits|fails <seed> <folder of the shims>
// Makes one collective after the other, some of them concurrently. Meanwhile
// the last rank is killed, or never makes a call (waits), or fails. Prints "ok:
// ..." on every rank that gets the error; otherwise the problem, and exits
// with 1.
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/config.h"
#include "runtime/api/runtime.h"
#include "runtime/transport/mpi/world.h"
#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

constexpr auto kHeardLimit = std::chrono::seconds(30);
constexpr size_t kInFlight = 4;

[[noreturn]] void End(int code, const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  // The launcher does not wait; MPI's exit handlers would.
  _exit(code);
}

struct Call {
  Pending pending;
  std::vector<int64_t> data;
  std::vector<int64_t> output;
};

// The same calls on all ranks: `random` has the same seed.
void Submit(Rank* rank, int number, std::mt19937* random, Call* call) {
  const auto size = static_cast<size_t>(rank->size());
  constexpr size_t kCounts[] = {1, 3000, 100'000, 1'000'000};
  const size_t count = size * kCounts[(*random)() % 4];
  call->data.assign(count, rank->rank() + 1);
  call->output.resize(count);
  const std::string name = "call " + std::to_string(number);
  switch ((*random)() % 6) {
    case 0:
      call->pending = rank->Allgather(name, call->data);
      break;
    case 1:
      call->pending = rank->Alltoall(
          name, call->data,
          std::vector<int64_t>(size, static_cast<int64_t>(count / size)));
      break;
    case 2:
      call->pending = rank->Broadcast(name, rank->size() - 1, &call->data);
      break;
    case 3:
      call->pending = rank->Reducescatter(name, call->data, &call->output);
      break;
    default:
      call->pending = rank->Allreduce(name, &call->data);
  }
}

// The error that ends the calls.
Status CallUntilDeath(Rank* rank, unsigned seed) {
  std::mt19937 random(seed);
  std::deque<Call> calls;
  for (int number = 0;; ++number) {
    Submit(rank, number, &random, &calls.emplace_back());
    if (calls.size() < kInFlight) continue;
    const auto& ended = calls.front().pending.ended;
    if (ended.wait_for(kHeardLimit) != std::future_status::ready) {
      return Internal("no error arrived");
    }
    if (!ended.get().status.ok()) return ended.get().status;
    calls.pop_front();
  }
}

int Main(const std::string& how, unsigned seed, const std::string& shims) {
  Config config;
  LaunchInfo launch;
  std::unique_ptr<World> world;
  MpiInfo info;
  Status status = ReadConfig(&config);
  if (status.ok()) status = ReadLaunchInfo(&launch);
  if (status.ok()) {
    status = MakeWorld({config, launch, shims, {}, MpiMembers(), {}, {}},
                       &world, &info);
  }
  if (!status.ok()) End(1, "FAILED: " + status.message());
  const int victim = launch.size - 1;
  const bool dies = how != "fails";
  World* const job = world.get();
  auto runtime = MakeRuntime(config, std::move(world));
  if (launch.rank == victim) {
    std::mt19937 random(seed + 1);
    const std::chrono::microseconds moment(random() % 100'000);
    std::thread([=] {
      std::this_thread::sleep_for(moment);
      if (dies) kill(getpid(), SIGKILL);
      job->RaiseAbort({AbortRecord::kFailed, victim, "it has failed"});
    }).detach();
  }
  while (how == "waits" && launch.rank == victim) pause();
  OpenRequests open;
  Rank rank(runtime.get(), &open);
  status = CallUntilDeath(&rank, seed);
  const std::string who = "rank " + std::to_string(victim) + " (";
  const auto says = [&status](const std::string& words) {
    return status.message().find(words) != std::string::npos;
  };
  const bool heard = dies ? says(who) && says(" died") : says("it has failed");
  runtime.reset();
  // Other ranks may still be reading this one's memory.
  if (!dies) std::this_thread::sleep_for(std::chrono::seconds(1));
  End(heard ? 0 : 1, (heard ? "ok: " : "FAILED: ") + status.message());
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr,
                 "usage: kills_main dies|waits|fails SEED SHIM_FOLDER\n");
    return 2;
  }
  return tf_hvd::Main(argv[1], static_cast<unsigned>(std::atoi(argv[2])),
                      argv[3]);
}

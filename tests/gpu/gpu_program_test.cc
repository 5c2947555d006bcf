// Random programs of collectives on software GPUs: checks every result, every
// memory access, and the order of NCCL's calls. --seeds=FROM:TO. With --flawed
// one of the seeds must fail, because the code has a flaw (mutants.toml). Also
// tests process sets that are added and removed.
#include "tests/gpu/gpu_program.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/gpu/gpu_ranks.h"
#include "tests/mutants/flawed.h"

namespace tf_hvd {
namespace {

uint64_t first_seed = 0;
uint64_t last_seed = 300;

// Ranks start the same operations in the same order, each at its own pace, and
// continue those in progress. Returns the number of MPI calls.
size_t RunProgram(uint64_t seed, GpuWay way) {
  std::mt19937_64 random(seed);
  const int ranks = 1 + static_cast<int>(random() % 4);
  GpuOptions options;
  options.staging_bytes = 4096;
  options.limits = {512, 3000};
  if (way == GpuWay::kBoth) {
    options.not_by_nccl = {OpKind::kAllreduce, OpKind::kBroadcast};
  }
  GpuRanks job(ranks, seed, way, options);
  GpuProgram program(seed, ranks);
  std::vector<std::deque<GpuRank::Call>> to_make(static_cast<size_t>(ranks));
  for (int i = 0; i < 12; ++i) {
    for (auto& [rank, call] : program.Next()) {
      to_make[static_cast<size_t>(rank)].push_back(std::move(call));
    }
  }
  bool left = true;
  for (int looks = 0; left && looks < 100'000; ++looks) {
    left = false;
    for (size_t rank = 0; rank < job.all.size(); ++rank) {
      auto& mine = to_make[rank];
      if (!mine.empty() && job.all[rank]->under_way() < 4 &&
          random() % 2 == 0) {
        job.all[rank]->Make(std::move(mine.front()));
        mine.pop_front();
      }
      left = left || !mine.empty();
      job.all[rank]->Move(&random);
    }
  }
  EXPECT_FALSE(left) << "the ranks hang";
  job.Finish(&random);
  job.Close();
  EXPECT_EQ(job.nccl.communicators(), 0u);
  EXPECT_EQ(job.mpi.left(), 0u);
  for (const std::string& fault : job.gpu.Faults()) ADD_FAILURE() << fault;
  return job.mpi.calls();
}

TEST(GpuProgram, ByNccl) {
  for (uint64_t seed = first_seed; seed < last_seed; ++seed) {
    SCOPED_TRACE(seed);
    RunProgram(seed, GpuWay::kNccl);
    if (HasFailure()) return;
  }
}

TEST(GpuProgram, ThroughPinnedMemory) {
  for (uint64_t seed = first_seed; seed < last_seed; seed += 4) {
    SCOPED_TRACE(seed);
    RunProgram(seed, GpuWay::kNone);
    if (HasFailure()) return;
  }
}

TEST(GpuProgram, ByCudaAwareMpi) {
  size_t calls = 0;
  for (uint64_t seed = first_seed; seed < last_seed; seed += 2) {
    SCOPED_TRACE(seed);
    calls += RunProgram(seed, GpuWay::kMpi);
    if (HasFailure()) return;
  }
  EXPECT_GT(calls, last_seed - first_seed);
}

TEST(GpuProgram, SomeByNcclSomeByMpi) {
  for (uint64_t seed = first_seed; seed < last_seed; seed += 4) {
    SCOPED_TRACE(seed);
    RunProgram(seed, GpuWay::kBoth);
    if (HasFailure()) return;
  }
}

// Whether neither happened before the other.
bool AreConcurrent(const SoftwareGpu::Done& a, const SoftwareGpu::Done& b) {
  return a.clock.of(b.actor) < b.time && b.clock.of(a.actor) < a.time;
}

// A bucket of two tensors on each of two ranks.
GpuRank::Call Bucket() {
  GpuRank::Call call;
  call.what = "a bucket";
  call.spec.ranks = MembersOf({0, 1});
  call.inputs = Tensors(2, std::vector<char>(256, 0));
  call.outputs = {256, 256};
  call.expected = call.inputs;
  call.point = [](const auto& inputs, const auto& outputs,
                  OperationSpec* spec) {
    for (size_t i = 0; i < 2; ++i) {
      spec->spans.push_back({inputs[i], outputs[i], 64});
    }
  };
  return call;
}

// One bucket is packed, or unpacked, while another is being sent.
TEST(GpuBackend, PacksAndUnpacksWhileNcclIsBusy) {
  constexpr int kBuckets = 4;
  int overlaps = 0;
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GpuRanks job(2, seed);
    std::mt19937_64 random(seed);
    job.gpu.Trace();
    for (int i = 0; i < kBuckets; ++i) {
      for (const auto& rank : job.all) rank->Make(Bucket());
    }
    job.Finish(&random);
    std::vector<SoftwareGpu::Done> moves;
    std::vector<SoftwareGpu::Done> calls;
    for (const SoftwareGpu::Done& done : job.gpu.Traced()) {
      if (done.what == "tf_hvd_copy_8") moves.push_back(done);
      if (done.what == "ncclAllReduce") calls.push_back(done);
    }
    EXPECT_EQ(moves.size(), size_t{2} * 2 * kBuckets);
    for (const auto& move : moves) {
      for (const auto& call : calls) {
        overlaps += move.device == call.device && AreConcurrent(move, call);
      }
    }
    job.Close();
    for (const std::string& fault : job.gpu.Faults()) ADD_FAILURE() << fault;
  }
  // On a single stream there would be none.
  EXPECT_GE(overlaps, 10 * kBuckets);
}

// One rank has joined: it gives zeros for larger and larger tensors, in memory
// that earlier calls still use.
TEST(GpuBackend, ZerosOfLargerTensorsDoNotDisturbSmallerOnes) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GpuOptions options;
    options.staging_bytes = 4096;
    GpuRanks job(2, seed, GpuWay::kNccl, options);
    std::mt19937_64 random(seed);
    for (const size_t bytes : {3000, 7000, 20000}) {
      GpuRank::Call call;
      call.what = std::to_string(bytes) + " bytes of one rank";
      call.spec.ranks = MembersOf({0, 1});
      call.inputs = {std::vector<char>(bytes, 0x11)};
      call.outputs = {bytes};
      call.expected = call.inputs;
      const auto count = static_cast<int64_t>(bytes / sizeof(float));
      call.point = [count](const auto& inputs, const auto& outputs,
                           OperationSpec* spec) {
        spec->spans.push_back({inputs[0], outputs[0], count});
      };
      job.all[0]->Make(call);
      call.joined = true;
      call.inputs = call.expected = {};
      call.outputs = {};
      call.point = [count](const auto&, const auto&, OperationSpec* spec) {
        spec->spans.push_back({nullptr, nullptr, count});
      };
      job.all[1]->Make(call);
    }
    job.Finish(&random);
    job.Close();
    for (const std::string& fault : job.gpu.Faults()) ADD_FAILURE() << fault;
  }
}

// It used to wait for later work on the streams, and was kept indefinitely.
TEST(GpuBackend, AnEndedOperationIsReleasedBeforeAHangingCall) {
  for (uint64_t seed = 0; seed < 10; ++seed) {
    GpuRanks job(2, seed);
    std::unique_ptr<Operation> local;
    std::vector<std::unique_ptr<Operation>> together(2);
    const auto make = [&](size_t rank, int32_t set, std::vector<int> ranks,
                          std::unique_ptr<Operation>* made) {
      OperationSpec spec;
      spec.set = set;
      spec.ranks = MembersOf(std::move(ranks));
      spec.memory.kind = MemoryKind::kDevice;
      spec.memory.device = static_cast<int>(rank);
      spec.reduce.prescale = 2.0;  // gives the single rank something to do
      char* const memory =
          job.gpu.NewMemory(spec.memory.device, 64, "a tensor");
      spec.spans.push_back({memory, memory, 16});
      ASSERT_TRUE(job.all[rank]->backend()->Make(std::move(spec), made).ok());
    };
    make(0, 1, {0}, &local);
    Poll poll;
    EXPECT_TRUE(local->Progress(100'000, &poll).ok());
    EXPECT_NE(poll.enqueued, nullptr);
    for (size_t rank = 0; rank < 2; ++rank) {
      make(rank, kWorldSet, {0, 1}, &together[rank]);
    }
    poll = Poll();
    for (int i = 0; i < 10'000 && poll.enqueued == nullptr; ++i) {
      Poll of_other;  // this one does not always reach its call
      EXPECT_TRUE(together[1]->Progress(100'000, &of_other).ok());
      EXPECT_TRUE(together[0]->Progress(100'000, &poll).ok());
    }
    EXPECT_NE(poll.enqueued, nullptr);
    EXPECT_TRUE(local->Abandon());
    EXPECT_TRUE(together[0]->Abandon());
    EXPECT_TRUE(together[1]->Abandon());
  }
}

// The sum of one number from each of two ranks.
GpuRank::Call SumIn(int32_t set) {
  const auto bytes = [](float number) {
    const auto* const begin = reinterpret_cast<const char*>(&number);
    return std::vector<char>(begin, begin + sizeof(number));
  };
  GpuRank::Call call;
  call.what = "a sum in set " + std::to_string(set);
  call.spec.set = set;
  call.spec.ranks = MembersOf({0, 1});
  call.inputs = {bytes(3)};
  call.outputs = {sizeof(float)};
  call.expected = {bytes(6)};
  call.point = [](const auto& inputs, const auto& outputs,
                  OperationSpec* spec) {
    spec->spans.push_back({inputs[0], outputs[0], 1});
  };
  return call;
}

// Each removed set used to leave a finished thread until the job's end.
TEST(GpuBackend, KeepsNothingOfRemovedSets) {
  GpuRanks job(2, 5);
  std::mt19937_64 random(5);
  for (int32_t set = 1; set <= 9; ++set) {
    for (const auto& rank : job.all) rank->Make(SumIn(set));
    job.Finish(&random);
    for (const auto& rank : job.all) {
      EXPECT_GT(rank->backend()->kept(), 0u);
      rank->backend()->SetRemoved(set);
    }
  }
  size_t kept = 1;
  for (int looks = 0; kept > 0 && looks < 10'000; ++looks) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kept = 0;
    for (const auto& rank : job.all) {
      rank->backend()->SetRemoved(99);  // a set without any state
      kept += rank->backend()->kept();
    }
  }
  EXPECT_EQ(kept, 0u);
  EXPECT_EQ(job.nccl.communicators(), 0u);
  job.Close();
  for (const std::string& fault : job.gpu.Faults()) ADD_FAILURE() << fault;
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  bool flawed = false;
  for (int i = 1; i < argc; ++i) {
    flawed = flawed || std::string(argv[i]) == "--flawed";
    unsigned long from = 0;
    unsigned long to = 0;
    if (std::sscanf(argv[i], "--seeds=%lu:%lu", &from, &to) == 2) {
      tf_hvd::first_seed = from;
      tf_hvd::last_seed = to;
    }
  }
  return flawed ? tf_hvd::RunFlawed() : RUN_ALL_TESTS();
}

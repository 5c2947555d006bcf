// Tests specific to ShmBackend: concurrent operations on overlapping sets of
// many ranks. collectives_test.cc has those for all backends.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/transport/shm/backend.h"
#include "tests/runtime/transport/cluster.h"
#include "tests/runtime/transport/juggler.h"

namespace tf_hvd {
namespace {

TEST(ShmBackend, ServesOnlySetsOfTheMachine) {
  const LoopbackArena memory(3);
  const ShmBackend backend(memory.arena(), {4, 6, 7}, 6, [](size_t) {});
  std::vector<int64_t> values(4);
  const auto serves = [&](const std::vector<int>& ranks, int32_t set) {
    return backend.Serves(AllreduceOf(ranks, set, &values));
  };
  EXPECT_TRUE(serves({4, 6, 7}, 0));
  EXPECT_TRUE(serves({6, 7}, ShmArena::kSets - 1));
  EXPECT_FALSE(serves({6, 7}, ShmArena::kSets)) << "no lines";
  EXPECT_FALSE(serves({5, 6}, 1)) << "5 is on another machine";
  EXPECT_FALSE(serves({6}, 1)) << "no other rank to share with";
  OperationSpec spec = AllreduceOf({6, 7}, 1, &values);
  spec.reduce.op = ReduceOp::kAdasum;
  EXPECT_FALSE(backend.Serves(spec)) << "needs messages";
  spec = AllreduceOf({6, 7}, 1, &values);
  spec.memory.kind = MemoryKind::kDevice;
  EXPECT_FALSE(backend.Serves(spec));
}

// An abandoned operation does not touch its ranks' memory, and other ranks do
// not use its rank's part of the arena.
TEST(ShmBackend, AbandonedOperationReleasesItsMemory) {
  Cluster cluster(2);
  CheckLettingGo(cluster.shm[0].get(), {0, 1});
}

}  // namespace
}  // namespace tf_hvd

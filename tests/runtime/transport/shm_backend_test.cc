// What is ShmBackend's own: operations under way at once, of sets that overlap,
// on many ranks. collectives_test.cc has what all backends do.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "runtime/transport/shm/backend.h"
#include "tests/runtime/transport/cluster.h"
#include "tests/runtime/transport/juggler.h"

namespace tf_hvd {
namespace {

TEST(ShmBackend, ServesSetsOfTheMachineAlone) {
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
  EXPECT_FALSE(serves({6}, 1)) << "nobody to share with";
  OperationSpec spec = AllreduceOf({6, 7}, 1, &values);
  spec.reduce.op = ReduceOp::kAdasum;
  EXPECT_FALSE(backend.Serves(spec)) << "needs messages";
  spec = AllreduceOf({6, 7}, 1, &values);
  spec.memory.kind = MemoryKind::kDevice;
  EXPECT_FALSE(backend.Serves(spec));
}

// An operation that is given up leaves the memory of its ranks alone, and its
// rank's part of the arena to nobody.
TEST(ShmBackend, AnAbandonedOperationLetsGo) {
  Cluster cluster(2);
  CheckLettingGo(cluster.shm[0].get(), {0, 1});
}

}  // namespace
}  // namespace tf_hvd

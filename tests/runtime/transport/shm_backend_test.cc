// What is ShmBackend's own: operations under way at once, of sets that overlap,
// on many ranks. collectives_test.cc has what all backends do.
#include "runtime/transport/shm_backend.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "tests/runtime/transport/cluster.h"

namespace tf_hvd {
namespace {

OperationSpec AllreduceOf(const std::vector<int>& ranks, int32_t set,
                          std::vector<int64_t>* values) {
  OperationSpec spec;
  spec.ranks = std::make_shared<const std::vector<int>>(ranks);
  spec.set = set;
  spec.reduce = Options(DType::kInt64, ReduceOp::kSum);
  spec.spans = {
      {values->data(), values->data(), static_cast<int64_t>(values->size())}};
  return spec;
}

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

// Keeps several allreduces under way and goes on with one or another of them.
// The sets overlap, so that slots are lent to several at once.
class Juggler {
 public:
  Juggler(int rank, const std::vector<std::vector<int>>& sets,
          ShmBackend* backend)
      : rank_(rank),
        sets_(sets),
        backend_(backend),
        own_(static_cast<unsigned>(rank + 1)) {}

  bool busy() const { return left_ > 0 || !running_.empty(); }

  void Turn() {
    if (left_ > 0 && running_.size() < backend_->window()) Begin();
    running_.remove_if([this](Running& one) { return Move(&one); });
    if (own_() % 4 == 0) std::this_thread::yield();
  }

 private:
  struct Running {
    std::vector<int64_t> values;
    int64_t expected = 0;
    std::unique_ptr<Operation> operation;
  };

  // The same operations on all ranks; this one makes those of its sets.
  void Begin() {
    const size_t set = agreed_() % sets_.size();
    const size_t count = 1 + agreed_() % (agreed_() % 5 == 0 ? 500000 : 4000);
    --left_;
    const auto& members = sets_[set];
    if (!std::binary_search(members.begin(), members.end(), rank_)) return;
    Running& one = running_.emplace_back();
    one.values.assign(count, (rank_ + 1) * left_);
    for (const int other : members) one.expected += (other + 1) * left_;
    EXPECT_TRUE(
        backend_
            ->Make(AllreduceOf(members, static_cast<int32_t>(set), &one.values),
                   &one.operation)
            .ok());
  }

  // True if it has ended.
  bool Move(Running* one) {
    if (own_() % 3 == 0) return false;
    Poll poll;
    EXPECT_TRUE(one->operation->Progress(1'000, &poll).ok());
    if (!poll.done) return false;
    const std::vector<int64_t> expected(one->values.size(), one->expected);
    EXPECT_TRUE(one->values == expected) << one->values[0] << expected[0];
    return true;
  }

  const int rank_;
  const std::vector<std::vector<int>>& sets_;
  ShmBackend* const backend_;
  std::mt19937 agreed_{7};  // the same on all ranks
  std::mt19937 own_;        // of this rank's pace
  std::list<Running> running_;
  int left_ = 150;
};

class ShmInFlight : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ShmInFlight, ::testing::Values(2, 3, 4, 8, 16));

TEST_P(ShmInFlight, OperationsOfOverlappingSets) {
  const int ranks = GetParam();
  std::vector<std::vector<int>> sets(ranks > 2 ? 3 : 1);
  for (int rank = 0; rank < ranks; ++rank) {
    sets[0].push_back(rank);
    if (ranks > 2 && rank > 0) sets[1].push_back(rank);
    if (ranks > 2 && rank % 2 == 0) sets[2].push_back(rank);
  }
  Cluster cluster(ranks);
  RunRanks(ranks, [&](int rank) {
    Juggler juggler(rank, sets, cluster.shm[static_cast<size_t>(rank)].get());
    while (juggler.busy()) juggler.Turn();
  });
}

// An operation that is given up leaves the memory of its ranks alone, and its
// rank's part of the arena to nobody.
TEST(ShmBackend, AnAbandonedOperationLetsGo) {
  Cluster cluster(2);
  std::vector<int64_t> values(300000, 1);
  std::unique_ptr<Operation> operation;
  ShmBackend& backend = *cluster.shm[0];
  ASSERT_TRUE(backend.Make(AllreduceOf({0, 1}, 0, &values), &operation).ok());
  Poll poll;
  do {
    poll = Poll();
    ASSERT_TRUE(operation->Progress(1'000'000, &poll).ok());
  } while (poll.moved);
  EXPECT_FALSE(poll.done);
  EXPECT_EQ(poll.awaited, 1);
  EXPECT_TRUE(operation->Abandon());
  operation.reset();
  EXPECT_EQ(values, std::vector<int64_t>(300000, 1));
}

}  // namespace
}  // namespace tf_hvd

// Allreduces of one rank, seen from its side: several under way at once, of
// sets that overlap (Juggler), and one that is given up.
#ifndef TF_HVD_TESTS_RUNTIME_TRANSPORT_JUGGLER_H_
#define TF_HVD_TESTS_RUNTIME_TRANSPORT_JUGGLER_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/transport/operation.h"
#include "runtime/transport/shm_arena.h"
#include "tests/runtime/transport/collectives.h"

namespace tf_hvd {

inline OperationSpec AllreduceOf(const std::vector<int>& ranks, int32_t set,
                                 std::vector<int64_t>* values) {
  OperationSpec spec;
  spec.ranks = std::make_shared<const std::vector<int>>(ranks);
  spec.set = set;
  spec.reduce = Options(DType::kInt64, ReduceOp::kSum);
  spec.spans = {
      {values->data(), values->data(), static_cast<int64_t>(values->size())}};
  return spec;
}

// An allreduce of rank 0, whose peers never come, gets as far as it can, waits
// for rank 1, and is given up: its tensor is as it was.
inline void CheckLettingGo(Backend* backend, const std::vector<int>& ranks) {
  const std::vector<int64_t> before(300000, 1);
  std::vector<int64_t> values = before;
  std::unique_ptr<Operation> operation;
  ASSERT_TRUE(backend->Make(AllreduceOf(ranks, 0, &values), &operation).ok());
  Poll poll;
  do {
    poll = Poll();
    ASSERT_TRUE(operation->Progress(1'000'000, &poll).ok());
  } while (poll.moved);
  EXPECT_FALSE(poll.done);
  EXPECT_EQ(poll.awaited, 1);
  EXPECT_TRUE(operation->Abandon());
  operation.reset();
  EXPECT_EQ(values, before);
}

// Keeps several allreduces under way and goes on with one or another of them.
// The sets overlap, so that slots are lent to several at once.
class Juggler {
 public:
  // The first of `backends` that serves a set gets its operations.
  Juggler(int rank, const std::vector<std::vector<int>>& sets,
          std::vector<Backend*> backends)
      : rank_(rank),
        sets_(sets),
        backends_(std::move(backends)),
        own_(static_cast<unsigned>(rank + 1)) {}

  bool busy() const { return left_ > 0 || !running_.empty(); }

  void Turn() {
    if (left_ > 0 && running_.size() < ShmArena::kSlots) Begin();
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
    OperationSpec spec =
        AllreduceOf(members, static_cast<int32_t>(set), &one.values);
    spec.number = numbers_[set]++;
    Backend* const backend =
        *std::find_if(backends_.begin(), backends_.end(),
                      [&](const Backend* b) { return b->Serves(spec); });
    EXPECT_TRUE(backend->Make(std::move(spec), &one.operation).ok());
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
  const std::vector<Backend*> backends_;
  std::mt19937 agreed_{7};  // the same on all ranks
  std::mt19937 own_;        // of this rank's pace
  std::list<Running> running_;
  std::map<size_t, uint64_t> numbers_;  // operations made, by set
  int left_ = 150;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_JUGGLER_H_

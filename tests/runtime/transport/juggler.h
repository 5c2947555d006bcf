// Operations of one rank: several in progress at once, of overlapping sets
// (Juggler), and one that is abandoned.
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

#include "runtime/contract/operation.h"
#include "tests/runtime/transport/collectives.h"

namespace tf_hvd {

inline OperationSpec AllreduceOf(const std::vector<int>& ranks, int32_t set,
                                 std::vector<int64_t>* values) {
  OperationSpec spec;
  spec.ranks = MembersOf(ranks);
  spec.set = set;
  spec.reduce = Options(DType::kInt64, ReduceOp::kSum);
  spec.spans = {
      {values->data(), values->data(), static_cast<int64_t>(values->size())}};
  return spec;
}

// Rank 0 starts an allreduce that its peers never join. It gets as far as
// possible, waits for rank 1, and is abandoned: its tensor is unchanged.
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

// A sanitizer makes filling and comparing values ten times as slow.
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr size_t kLarge = 50000;
constexpr int kOperations = 50;
#else
constexpr size_t kLarge = 500000;
constexpr int kOperations = 150;
#endif

// All ranks; with more than two, also all but the first, and every second one.
inline std::vector<std::vector<int>> OverlappingSets(int ranks) {
  std::vector<std::vector<int>> sets(ranks > 2 ? 3 : 1);
  for (int rank = 0; rank < ranks; ++rank) {
    sets[0].push_back(rank);
    if (ranks > 2 && rank > 0) sets[1].push_back(rank);
    if (ranks > 2 && rank % 2 == 0) sets[2].push_back(rank);
  }
  return sets;
}

// Keeps several operations of all kinds in progress and polls them in random
// order. The sets overlap, so that several use slots at once. Each operation
// has one tensor or a group, with the tensors in reverse order in memory.
class Juggler {
 public:
  // The first of `backends` that serves an operation gets it; `room`: the
  // smallest window of the backends that are used.
  Juggler(int rank, const std::vector<std::vector<int>>& sets,
          std::vector<Backend*> backends, size_t room,
          int operations = kOperations)
      : rank_(rank),
        sets_(sets),
        backends_(std::move(backends)),
        room_(room),
        own_(static_cast<unsigned>(rank + 1)),
        left_(operations) {
    for (size_t set = 1; set < sets.size(); ++set) {
      for (Backend* backend : backends_) {
        EXPECT_TRUE(
            backend->SetAdded(static_cast<int32_t>(set), sets[set]).ok());
      }
    }
  }

  bool busy() const { return left_ > 0 || !running_.empty(); }

  void Turn() {
    if (left_ > 0 && running_.size() < room_) Begin();
    running_.remove_if([this](Running& one) { return Move(&one); });
    if (own_() % 4 == 0) std::this_thread::yield();
  }

 private:
  using Values = std::vector<int64_t>;

  // Each rank's input or result, in a group's memory.
  struct Laid {
    Values memory;
    std::vector<std::vector<size_t>> at;  // of each rank's part of each tensor
  };

  struct Running {
    Values input;
    Values output;
    Values expected;
    std::unique_ptr<Operation> operation;
  };

  // Makes the same operations on all ranks; this rank starts those of its sets.
  void Begin() {
    constexpr OpKind kKinds[] = {OpKind::kAllreduce, OpKind::kBroadcast,
                                 OpKind::kAllgather, OpKind::kAlltoall,
                                 OpKind::kReducescatter};
    const OpKind kind = kKinds[agreed_() % 5];
    const size_t set = agreed_() % sets_.size();
    const size_t large = std::min(kLarge, 8 * kLarge / sets_[0].size());
    const size_t most = 1 + agreed_() % (agreed_() % 5 == 0 ? large : 4000);
    const size_t root = agreed_() % sets_[set].size();
    // The size of rank i's data for rank j: at [i][j].
    std::vector<std::vector<int64_t>> counts(sets_[set].size());
    for (auto& row : counts) {
      for (size_t i = 0; i < counts.size(); ++i) {
        const size_t count = agreed_() % (most / counts.size() + 1);
        row.push_back(static_cast<int64_t>(count));
      }
    }
    ends_.assign(1 + agreed_() % 3, 8);
    for (size_t t = 0; t + 1 < ends_.size(); ++t) {
      ends_[t] = static_cast<int64_t>(agreed_() % 9);
    }
    std::sort(ends_.begin(), ends_.end());
    --left_;
    const auto& members = sets_[set];
    const auto found = std::lower_bound(members.begin(), members.end(), rank_);
    if (found == members.end() || *found != rank_) return;
    OperationSpec spec;
    spec.kind = kind;
    spec.ranks = MembersOf(members);
    spec.set = static_cast<int32_t>(set);
    spec.number = numbers_[set]++;
    spec.root = root;
    spec.reduce = Options(DType::kInt64, ReduceOp::kSum);
    Running& one = running_.emplace_back();
    Fill(static_cast<size_t>(found - members.begin()),
         static_cast<int64_t>(most), counts, &spec, &one);
    Backend* const backend =
        *std::find_if(backends_.begin(), backends_.end(),
                      [&](const Backend* b) { return b->Serves(spec); });
    EXPECT_TRUE(backend->Make(std::move(spec), &one.operation).ok());
  }

  // A rank's data for the rank at place `to`; the values encode both ranks and
  // the position.
  void Add(int rank, size_t to, int64_t count, Values* values) const {
    for (int64_t i = 0; i < count; ++i) {
      values->push_back(
          ((rank + 1) * left_ * 64 + static_cast<int64_t>(to)) * 1'000'000 + i);
    }
  }

  void Fill(size_t me, int64_t count,
            const std::vector<std::vector<int64_t>>& counts,
            OperationSpec* spec, Running* one) const {
    const std::vector<int>& members = *spec->ranks;
    std::vector<Values> inputs(members.size());  // by rank, or for each rank
    std::vector<Values> outputs(members.size());
    for (size_t place = 0; place < members.size(); ++place) {
      const int rank = members[place];
      switch (spec->kind) {
        case OpKind::kAllreduce:
          Add(rank, 0, count, &inputs[place]);
          break;
        case OpKind::kBroadcast:
          Add(rank, 0, count, &inputs[place]);
          if (place == spec->root) Add(rank, 0, count, &outputs[0]);
          break;
        case OpKind::kAllgather:
          Add(rank, 0, counts[0][place], &outputs[place]);
          if (place == me) inputs[place] = outputs[place];
          break;
        case OpKind::kAlltoall:
          Add(rank, me, counts[place][me], &outputs[0]);
          Add(rank_, place, counts[me][place], &inputs[0]);
          spec->receive.push_back(counts[place][me] * kBytes);
          spec->send.push_back(counts[me][place] * kBytes);
          break;
        default:
          Add(rank_, place, counts[0][place], &inputs[place]);
          for (const int other : members) {
            if (place != me) continue;
            Values its;
            Add(other, me, counts[0][me], &its);
            AddTo(its, &outputs[me]);
          }
      }
    }
    if (spec->kind == OpKind::kAllreduce) {
      for (const Values& input : inputs) AddTo(input, &outputs[0]);
    }
    if (spec->kind == OpKind::kAllreduce || spec->kind == OpKind::kBroadcast) {
      inputs = {inputs[me]};
      outputs = {outputs[0]};
    }
    Point(inputs, outputs, spec, one);
  }

  static void AddTo(const Values& values, Values* sums) {
    sums->resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) (*sums)[i] += values[i];
  }

  // End of a tensor's part in a run of `count` values.
  size_t EndOf(size_t tensor, size_t count) const {
    return count * static_cast<size_t>(ends_[tensor]) / 8;
  }
  size_t BeginOf(size_t tensor, size_t count) const {
    return tensor == 0 ? 0 : EndOf(tensor - 1, count);
  }

  // The last tensor first, and inside each tensor the ranks' parts.
  Laid Lay(const std::vector<Values>& runs) const {
    Laid laid;
    laid.at.assign(runs.size(), std::vector<size_t>(ends_.size()));
    for (size_t t = ends_.size(); t-- > 0;) {
      for (size_t place = 0; place < runs.size(); ++place) {
        const Values& run = runs[place];
        laid.at[place][t] = laid.memory.size();
        for (size_t i = BeginOf(t, run.size()); i < EndOf(t, run.size()); ++i) {
          laid.memory.push_back(run[i]);
        }
      }
    }
    return laid;
  }

  void Point(const std::vector<Values>& inputs,
             const std::vector<Values>& outputs, OperationSpec* spec,
             Running* one) const {
    const bool flat = spec->kind == OpKind::kAlltoall;
    Laid input = Lay(inputs);
    Laid output = Lay(outputs);
    one->input = flat ? inputs[0] : std::move(input.memory);
    one->expected = flat ? outputs[0] : std::move(output.memory);
    one->output.assign(one->expected.size() + 1, -1);
    spec->input = one->input.data();
    spec->output = one->output.data();
    if (flat) return;
    const bool reduces = spec->kind == OpKind::kAllreduce ||
                         spec->kind == OpKind::kReducescatter;
    for (size_t place = 0; place < inputs.size(); ++place) {
      const size_t count =
          std::max(inputs[place].size(), outputs[place].size());
      for (size_t t = 0; t < ends_.size(); ++t) {
        const auto here =
            static_cast<int64_t>(EndOf(t, count) - BeginOf(t, count));
        const bool given = !inputs[place].empty();
        const bool got = !outputs[place].empty();
        spec->spans.push_back(
            {given ? one->input.data() + input.at[place][t] : nullptr,
             got ? one->output.data() + output.at[place][t] : nullptr,
             reduces ? here : here * kBytes});
      }
    }
  }

  // True if it has ended.
  bool Move(Running* one) {
    if (own_() % 3 == 0) return false;
    Poll poll;
    const Status status = one->operation->Progress(1'000, &poll);
    EXPECT_TRUE(status.ok()) << status.message();
    if (!poll.done) return false;
    EXPECT_EQ(one->output.back(), -1);
    one->output.pop_back();
    EXPECT_TRUE(one->output == one->expected) << one->output.size();
    return true;
  }

  static constexpr auto kBytes = static_cast<int64_t>(sizeof(int64_t));

  const int rank_;
  const std::vector<std::vector<int>>& sets_;
  const std::vector<Backend*> backends_;
  const size_t room_;
  std::mt19937 agreed_{7};  // the same on all ranks
  std::mt19937 own_;        // for this rank's pace
  std::list<Running> running_;
  std::map<size_t, uint64_t> numbers_;  // operations made, by set
  int64_t left_;
  // Ends of an operation's tensors, in eighths of each rank's data.
  std::vector<int64_t> ends_;
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_RUNTIME_TRANSPORT_JUGGLER_H_

// The data that two ranks write to their slots, and when they announce it. One
// thread executes both, in one of two schedules. First: as soon as one rank
// announces progress, the other uses it, before the first continues. An
// announcement that is too early then fails every time, not only sometimes.
// Second: each rank goes as far as it can before the other continues. A use
// that is too early then fails every time.
#include "runtime/transport/shm/slot_writer.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/counters.h"
#include "runtime/transport/loopback/arena.h"
#include "runtime/transport/shm/backend.h"
#include "tests/mutants/flawed.h"
#include "tests/runtime/transport/juggler.h"

namespace tf_hvd {
namespace {

using Floats = std::vector<float>;

enum class Turns { kAtEachWord, kAsFarAsItGoes };

class Pair {
 public:
  explicit Pair(SlotStores stores, Turns turns = Turns::kAtEachWord)
      : memory_(2), turns_(turns) {
    for (size_t rank = 0; rank < 2; ++rank) {
      ranks_[rank].backend = std::make_unique<ShmBackend>(
          memory_.arena(), std::vector<int>{0, 1}, static_cast<int>(rank),
          [this](size_t other) {
            if (turns_ == Turns::kAtEachWord) Move(other);
          },
          SlotOptions{stores, nullptr});
    }
  }

  // `specs`: one for each rank.
  void Run(std::array<OperationSpec, 2> specs) {
    for (size_t rank = 0; rank < 2; ++rank) {
      specs[rank].ranks = MembersOf({0, 1});
      ranks_[rank].done = false;
      ASSERT_TRUE(
          ranks_[rank]
              .backend->Make(std::move(specs[rank]), &ranks_[rank].operation)
              .ok());
    }
    for (int turn = 0; !ranks_[0].done || !ranks_[1].done; ++turn) {
      ASSERT_LT(turn, 100000);
      for (size_t rank = 0; rank < 2; ++rank) {
        while (Move(rank) && turns_ == Turns::kAsFarAsItGoes) {
        }
      }
    }
    for (Rank& rank : ranks_) rank.operation.reset();
  }

  const SlotCounts& counts(size_t rank) const {
    return ranks_[rank].backend->counts();
  }

 private:
  struct Rank {
    std::unique_ptr<ShmBackend> backend;
    std::unique_ptr<Operation> operation;
    bool moves = false;
    bool done = true;
  };

  // Executes one piece of work of that rank, unless it is inside one. False:
  // none is left.
  bool Move(size_t number) {
    Rank& rank = ranks_[number];
    if (rank.moves || rank.done) return false;
    rank.moves = true;
    Poll poll;
    EXPECT_TRUE(rank.operation->Progress(0, &poll).ok());
    rank.moves = false;
    rank.done = poll.done;
    return poll.moved;
  }

  const LoopbackArena memory_;
  const Turns turns_;
  std::array<Rank, 2> ranks_;
};

// Whole numbers, so that sums are exact.
Floats Numbers(size_t count, int first) {
  Floats numbers(count);
  for (size_t i = 0; i < count; ++i) {
    numbers[i] = static_cast<float>(first + static_cast<int>(i % 1000));
  }
  return numbers;
}

OperationSpec Reduction(OpKind kind) {
  OperationSpec spec;
  spec.kind = kind;
  spec.reduce = Options(DType::kFloat32, ReduceOp::kSum);
  return spec;
}

// Divides `values` into tensors of odd lengths.
std::vector<Span> Cut(Floats* values) {
  std::vector<Span> spans;
  size_t at = 0;
  for (size_t length = 7; at < values->size(); length = length * 5 + 1) {
    const size_t count = std::min(length, values->size() - at);
    spans.push_back({values->data() + at, values->data() + at,
                     static_cast<int64_t>(count)});
    at += count;
  }
  return spans;
}

Floats SumOf(const Floats& a, const Floats& b) {
  Floats sum = a;
  for (size_t i = 0; i < sum.size(); ++i) sum[i] += b[i];
  return sum;
}

void Allreduce(Pair* pair, size_t count) {
  std::array<Floats, 2> values = {Numbers(count, 1), Numbers(count, 5)};
  const Floats expected = SumOf(values[0], values[1]);
  std::array<OperationSpec, 2> specs;
  for (size_t rank = 0; rank < 2; ++rank) {
    specs[rank] = Reduction(OpKind::kAllreduce);
    specs[rank].spans = Cut(&values[rank]);
  }
  pair->Run(specs);
  EXPECT_TRUE(values[0] == expected);
  EXPECT_TRUE(values[1] == expected);
}

void Reducescatter(Pair* pair, size_t half) {
  std::array<Floats, 2> inputs = {Numbers(2 * half, 1), Numbers(2 * half, 5)};
  const Floats sums = SumOf(inputs[0], inputs[1]);
  std::array<Floats, 2> results = {Floats(half), Floats(half)};
  std::array<OperationSpec, 2> specs;
  for (size_t rank = 0; rank < 2; ++rank) {
    specs[rank] = Reduction(OpKind::kReducescatter);
    for (size_t to = 0; to < 2; ++to) {
      specs[rank].spans.push_back({inputs[rank].data() + to * half,
                                   to == rank ? results[to].data() : nullptr,
                                   static_cast<int64_t>(half)});
    }
  }
  pair->Run(specs);
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(std::equal(results[rank].begin(), results[rank].end(),
                           sums.begin() + static_cast<ptrdiff_t>(rank * half)));
  }
}

void Broadcast(Pair* pair, size_t count) {
  std::array<Floats, 2> values = {Numbers(count, 1), Floats(count)};
  std::array<OperationSpec, 2> specs;
  for (size_t rank = 0; rank < 2; ++rank) {
    specs[rank].kind = OpKind::kBroadcast;
    specs[rank].spans = {{values[rank].data(), values[rank].data(),
                          static_cast<int64_t>(count * sizeof(float))}};
  }
  pair->Run(specs);
  EXPECT_TRUE(values[1] == values[0]);
}

void Allgather(Pair* pair, size_t count) {
  const std::array<Floats, 2> values = {Numbers(count, 1), Numbers(count, 5)};
  std::array<Floats, 2> results = {Floats(2 * count), Floats(2 * count)};
  const auto bytes = static_cast<int64_t>(count * sizeof(float));
  std::array<OperationSpec, 2> specs;
  for (size_t rank = 0; rank < 2; ++rank) {
    specs[rank].kind = OpKind::kAllgather;
    specs[rank].spans = {
        {values[rank].data(), results[rank].data(), bytes},
        {values[rank].data(), results[rank].data() + count, bytes}};
  }
  pair->Run(specs);
  Floats expected = values[0];
  expected.insert(expected.end(), values[1].begin(), values[1].end());
  EXPECT_TRUE(results[0] == expected);
  EXPECT_TRUE(results[1] == expected);
}

void Alltoall(Pair* pair, size_t half) {
  const std::array<Floats, 2> values = {Numbers(2 * half, 1),
                                        Numbers(2 * half, 5)};
  std::array<Floats, 2> results = {Floats(2 * half), Floats(2 * half)};
  const auto bytes = static_cast<int64_t>(half * sizeof(float));
  std::array<OperationSpec, 2> specs;
  for (size_t rank = 0; rank < 2; ++rank) {
    specs[rank].kind = OpKind::kAlltoall;
    specs[rank].input = values[rank].data();
    specs[rank].output = results[rank].data();
    specs[rank].send = specs[rank].receive = {bytes, bytes};
  }
  pair->Run(specs);
  for (size_t rank = 0; rank < 2; ++rank) {
    for (size_t from = 0; from < 2; ++from) {
      EXPECT_EQ(std::memcmp(results[rank].data() + from * half,
                            values[from].data() + rank * half, half * 4),
                0);
    }
  }
}

constexpr size_t kCounts[] = {1, 1000, 3000, 20000, 700001};

void RunAll(Pair* pair) {
  for (const size_t count : kCounts) {
    SCOPED_TRACE(count);
    Allreduce(pair, count);
    Reducescatter(pair, count);
    Broadcast(pair, count);
    Allgather(pair, count);
    Alltoall(pair, count);
  }
}

// One tensor of `count` floats; each rank owns half.
void OneTensor(Pair* pair, size_t count) {
  std::array<Floats, 2> values = {Numbers(count, 1), Numbers(count, 5)};
  std::array<OperationSpec, 2> specs;
  for (size_t rank = 0; rank < 2; ++rank) {
    specs[rank] = Reduction(OpKind::kAllreduce);
    specs[rank].spans = {{values[rank].data(), values[rank].data(),
                          static_cast<int64_t>(count)}};
  }
  pair->Run(specs);
}

TEST(SlotWriter, AnnouncedDataIsWritten) {
  for (const SlotStores stores :
       {SlotStores::kMeasured, SlotStores::kOrdinary, SlotStores::kStreaming,
        SlotStores::kAlternating}) {
    for (const Turns turns : {Turns::kAtEachWord, Turns::kAsFarAsItGoes}) {
      SCOPED_TRACE(static_cast<int>(stores));
      SCOPED_TRACE(static_cast<int>(turns));
      Pair pair(stores, turns);
      RunAll(&pair);
    }
  }
}

TEST(SlotWriter, EachStreamEndsWithAFence) {
  for (const SlotStores stores :
       {SlotStores::kStreaming, SlotStores::kAlternating}) {
    Pair pair(stores);
    const uint64_t before = CountOf(Counted::kFences);
    RunAll(&pair);
    const uint64_t streams = pair.counts(0).streams + pair.counts(1).streams;
    EXPECT_GT(streams, 0u);
    EXPECT_EQ(CountOf(Counted::kFences) - before, streams);
  }
}

TEST(SlotWriter, BytesAreCountedByKindOfStore) {
  constexpr size_t kCount = size_t{1} << 20;  // 4 MiB: four pieces of 1 MiB
  Pair streaming(SlotStores::kStreaming);
  OneTensor(&streaming, kCount);
  // Half of the input, and half of the sums.
  EXPECT_EQ(streaming.counts(0).streamed_bytes, kCount * 4);
  EXPECT_EQ(streaming.counts(0).ordinary_bytes, 0u);
  EXPECT_EQ(streaming.counts(0).streams, 8u);
  Pair ordinary(SlotStores::kOrdinary);
  const uint64_t before = CountOf(Counted::kFences);
  OneTensor(&ordinary, kCount);
  EXPECT_EQ(ordinary.counts(0).ordinary_bytes, kCount * 4);
  EXPECT_EQ(ordinary.counts(0).streams, 0u);
  EXPECT_EQ(CountOf(Counted::kFences), before);
}

TEST(SlotWriter, ShortPartsAreNeverStreamed) {
  Pair pair(SlotStores::kStreaming);
  OneTensor(&pair, SlotWriter::kLeastBytes / 4 - 1);
  EXPECT_EQ(pair.counts(0).streams, 0u);
  EXPECT_EQ(pair.counts(0).writes, 0u) << "nor timed";
}

// A reader's time covers everything that it reads.
TEST(SlotWriter, PartsOfDifferentLengthsAreNotCompared) {
  Pair pair(SlotStores::kMeasured);
  const Floats values(20000, 1);
  std::array<Floats, 2> results = {Floats(30000), Floats(30000)};
  std::array<OperationSpec, 2> specs;
  for (size_t rank = 0; rank < 2; ++rank) {
    specs[rank].kind = OpKind::kAllgather;
    specs[rank].spans = {{values.data(), results[rank].data(), 80000},
                         {values.data(), results[rank].data() + 20000, 40000}};
  }
  pair.Run(specs);
  EXPECT_EQ(pair.counts(0).writes, 0u);
  EXPECT_EQ(pair.counts(0).ordinary_bytes, 80000u);
}

TEST(SlotWriter, OneWriteIn199Explores) {
  Pair pair(SlotStores::kMeasured);
  for (int i = 0; i < 400; ++i) OneTensor(&pair, size_t{1} << 18);
  for (size_t rank = 0; rank < 2; ++rank) {
    const SlotCounts& counts = pair.counts(rank);
    EXPECT_EQ(counts.writes, 400u * 4 * 2) << "inputs and sums of each piece";
    EXPECT_GE(counts.explored, 2u) << "of each choice";
    EXPECT_LE(counts.explored, counts.writes / 199 + 2);
  }
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  const bool flawed = argc > 1 && std::string(argv[1]) == "--flawed";
  return flawed ? tf_hvd::RunFlawed() : RUN_ALL_TESTS();
}

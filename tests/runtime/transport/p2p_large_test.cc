// More than 2^31 elements and more than 2 GiB, with one such buffer in memory.

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstdint>

#include "tests/runtime/transport/cluster.h"

namespace tf_hvd {
namespace {

constexpr size_t kCount = (size_t{1} << 31) + 4099;
// Some elements on both sides of what an int and a message can hold.
constexpr size_t kProbes[] = {0,
                              (size_t{1} << 30) - 1,
                              size_t{1} << 30,
                              (size_t{1} << 31) - 1,
                              size_t{1} << 31,
                              kCount - 1};

// Pages are there once they are written; until then they read as zeros.
class LargeBuffer {
 public:
  LargeBuffer()
      : data_(static_cast<uint8_t*>(
            mmap(nullptr, kCount, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))) {}
  ~LargeBuffer() { munmap(data_, kCount); }
  LargeBuffer(const LargeBuffer&) = delete;
  LargeBuffer& operator=(const LargeBuffer&) = delete;
  uint8_t* data() { return data_; }

 private:
  uint8_t* const data_;
};

void Mark(uint8_t* data) {
  uint8_t value = 1;
  for (const size_t probe : kProbes) data[probe] = value++;
}

void ExpectMarks(const uint8_t* data) {
  uint8_t value = 1;
  for (const size_t probe : kProbes) EXPECT_EQ(data[probe], value++) << probe;
  EXPECT_EQ(data[1], 0);
  EXPECT_EQ(data[kCount - 2], 0);
}

TEST(P2PLarge, AllreduceOfMoreThanAnIntCounts) {
  Cluster cluster(2);
  LargeBuffer buffer;
  Mark(buffer.data());
  ReduceOptions sum;
  sum.dtype = DType::kUint8;
  cluster.Run([&](int rank, Collectives* data) {
    Span span = {buffer.data(), buffer.data(), static_cast<int64_t>(kCount)};
    if (rank == 1) span.input = span.output = nullptr;  // has joined
    return data->Allreduce(cluster.all, {span}, sum);
  });
  ExpectMarks(buffer.data());
}

TEST(P2PLarge, BroadcastOfMoreThanTwoGibibytes) {
  Cluster cluster(2);
  LargeBuffer from;
  LargeBuffer to;
  Mark(from.data());
  cluster.Run([&](int rank, Collectives* data) {
    return data->Broadcast(cluster.all, 0, rank == 0 ? from.data() : to.data(),
                           static_cast<int64_t>(kCount));
  });
  ExpectMarks(to.data());
}

// One message of more than PointToPoint::kMaxBytes.
TEST(P2PLarge, AllgatherCutsLongMessages) {
  Cluster cluster(2);
  LargeBuffer mine;
  LargeBuffer to;
  Mark(mine.data());
  cluster.Run([&](int rank, Collectives* data) {
    // The rank that gives has it where it belongs.
    uint8_t* const output = rank == 0 ? mine.data() : to.data();
    return data->Allgather(cluster.all, rank == 0 ? mine.data() : nullptr,
                           {static_cast<int64_t>(kCount), 0}, output);
  });
  ExpectMarks(to.data());
}

TEST(P2PLarge, AlltoallCutsLongMessages) {
  Cluster cluster(2);
  LargeBuffer mine;
  LargeBuffer to;
  Mark(mine.data());
  cluster.Run([&](int rank, Collectives* data) {
    constexpr auto kBytes = static_cast<int64_t>(kCount);
    return rank == 0 ? data->Alltoall(cluster.all, mine.data(), {0, kBytes},
                                      nullptr, {0, 0})
                     : data->Alltoall(cluster.all, nullptr, {0, 0}, to.data(),
                                      {kBytes, 0});
  });
  ExpectMarks(to.data());
}

}  // namespace
}  // namespace tf_hvd

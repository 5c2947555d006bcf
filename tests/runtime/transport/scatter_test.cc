// Alltoall and reducescatter; run for each data path (cluster.h).
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "compute/buffer_ops.h"
#include "tests/compute/nan_aware.h"
#include "tests/runtime/transport/cluster.h"

namespace tf_hvd {
namespace {

using Sizes = std::vector<int64_t>;

int64_t Total(const Sizes& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

char ByteOf(int from, int to, int64_t i) {
  return static_cast<char>(i * 31 + from * 101 + to * 57 + 7);
}

std::string Bytes(int from, int to, int64_t count) {
  std::string bytes;
  for (int64_t i = 0; i < count; ++i) bytes += ByteOf(from, to, i);
  return bytes;
}

// Sends matrix[from][to] bytes.
void CheckAlltoall(const std::vector<Sizes>& matrix, size_t cut) {
  const int ranks = static_cast<int>(matrix.size());
  Cluster cluster(ranks, cut);
  cluster.Run([&](int rank, Collectives* data) {
    std::string input;
    std::string expected;
    Sizes receive;
    for (int other = 0; other < ranks; ++other) {
      input += Bytes(rank, other, matrix[rank][other]);
      expected += Bytes(other, rank, matrix[other][rank]);
      receive.push_back(matrix[other][rank]);
    }
    const std::string sent = input;
    std::string output(expected.size() + 8, '?');
    const Status status =
        data->Alltoall(cluster.all, input.empty() ? nullptr : input.data(),
                       matrix[rank], output.data(), receive);
    EXPECT_TRUE(output == expected + "????????") << rank;
    EXPECT_TRUE(input == sent) << rank;
    return status;
  });
}

class ScatterTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ScatterTest,
                         ::testing::Values(1, 2, 3, 4, 5, 8));

TEST_P(ScatterTest, AlltoallOfEqualParts) {
  const auto ranks = static_cast<size_t>(GetParam());
  for (const int64_t part : {0, 1, 1000, 200000}) {
    CheckAlltoall(std::vector<Sizes>(ranks, Sizes(ranks, part)),
                  PointToPoint::kMaxBytes);
  }
}

// Some pairs exchange nothing, others much, in messages of 1000 bytes or one.
TEST_P(ScatterTest, AlltoallOfUnequalParts) {
  const auto ranks = static_cast<size_t>(GetParam());
  std::mt19937 random(ranks);
  for (const size_t cut : {PointToPoint::kMaxBytes, size_t{1000}}) {
    std::vector<Sizes> matrix(ranks, Sizes(ranks));
    for (Sizes& row : matrix) {
      for (int64_t& bytes : row) {
        if (random() % 3 > 0) bytes = random() % 70000;
      }
    }
    CheckAlltoall(matrix, cut);
  }
}

// Reduces the ranks' `inputs` by both collectives and compares every byte of
// the parts.
void CheckSlices(const std::vector<std::string>& inputs, const Sizes& counts,
                 const ReduceOptions& options) {
  const size_t element = SizeOf(options.dtype);
  Cluster cluster(static_cast<int>(inputs.size()), 100000);
  cluster.Run([&](int rank, Collectives* data) {
    const auto place = static_cast<size_t>(rank);
    const std::string& input = inputs[place];
    std::string whole(input.size(), '?');
    const Span span = {input.data(), whole.data(), Total(counts)};
    Status status = data->Allreduce(cluster.all, {span}, options);
    if (!status.ok()) return status;
    const int64_t before =
        std::accumulate(counts.begin(), counts.begin() + rank, int64_t{0});
    const std::string expected =
        whole.substr(static_cast<size_t>(before) * element,
                     static_cast<size_t>(counts[place]) * element);
    std::string part(expected.size() + 8, '?');
    const std::string sent = input;
    status = data->Reducescatter(cluster.all, input.data(), counts, part.data(),
                                 options);
    // The loops that sum the parts have different lengths.
    EXPECT_EQ(FirstDifference(options.dtype, part.substr(0, expected.size()),
                              expected),
              -1)
        << rank;
    EXPECT_EQ(part.substr(expected.size()), "????????") << rank;
    EXPECT_TRUE(input == sent) << rank;
    return status;
  });
}

std::vector<std::string> RandomInputs(size_t ranks, size_t bytes) {
  std::mt19937 random(static_cast<unsigned>(ranks * 1000 + bytes));
  std::vector<std::string> inputs(ranks, std::string(bytes, '\0'));
  for (std::string& input : inputs) {
    for (char& byte : input) byte = static_cast<char>(random());
  }
  return inputs;
}

TEST_P(ScatterTest, ReducescatterHasTheBitsOfAllreduceInEveryType) {
  const auto ranks = static_cast<size_t>(GetParam());
  const Sizes counts = [&] {
    Sizes uneven(ranks, 40);
    uneven[0] = 43;
    return uneven;
  }();
  for (int number = 0; number < kDTypeCount; ++number) {
    const auto dtype = static_cast<DType>(number);
    const auto inputs =
        RandomInputs(ranks, static_cast<size_t>(Total(counts)) * SizeOf(dtype));
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin, ReduceOp::kMax,
          ReduceOp::kProduct}) {
      if (!IsReducible(dtype, op)) continue;
      SCOPED_TRACE(std::string(NameOf(dtype)) + " " + NameOf(op));
      CheckSlices(inputs, counts, {dtype, op, 1.0, 1.0});
      CheckSlices(inputs, counts, {dtype, op, 0.3, 1.7});
    }
  }
}

// Parts of zero, one and several pieces, with different boundaries.
TEST_P(ScatterTest, ReducescatterOfUnequalParts) {
  const auto ranks = static_cast<size_t>(GetParam());
  for (const int64_t most : {0, 1, 5000, 400001}) {
    Sizes counts(ranks);
    for (size_t place = 0; place < ranks; ++place) {
      counts[place] = most *
                      static_cast<int64_t>((place * 2 + 1) % (ranks + 1)) /
                      static_cast<int64_t>(ranks);
    }
    SCOPED_TRACE(most);
    const auto inputs =
        RandomInputs(ranks, static_cast<size_t>(Total(counts)) * sizeof(float));
    CheckSlices(inputs, counts, {DType::kFloat32, ReduceOp::kAverage, 1, 1});
  }
}

TEST(ScatterTestEnds, AbandonedOperationReleasesItsMemory) {
  const Collectives::Meanwhile failing = [] { return Aborted("rank 2 died"); };
  for (const bool reduce : {true, false}) {
    Cluster cluster(3);  // rank 2 does not take part
    RunRanks(2, [&](int rank) {
      Collectives* const data = cluster.collectives[rank].get();
      const std::vector<float> input(3000, 1.0f);
      std::vector<float> output(3000);
      const Sizes bytes(3, 4000);
      const Status status =
          reduce ? data->Reducescatter(
                       cluster.all, input.data(), Sizes(3, 1000), output.data(),
                       {DType::kFloat32, ReduceOp::kSum, 1, 1}, failing)
                 : data->Alltoall(cluster.all, input.data(), bytes,
                                  output.data(), bytes, failing);
      EXPECT_EQ(status.message(), "rank 2 died");
      EXPECT_FALSE(data->memory_in_use());
    });
  }
}

TEST(ScatterTestEnds, RejectsInvalidOperations) {
  P2PBackend backend(nullptr, 0);
  Collectives transport(&backend);
  const float input[2] = {1, 2};
  float output[2];
  for (const ReduceOptions& options :
       {ReduceOptions{DType::kComplex64, ReduceOp::kMax, 1, 1},
        ReduceOptions{DType::kFloat32, ReduceOp::kAdasum, 1, 1}}) {
    EXPECT_EQ(
        transport.Reducescatter({0}, input, {1}, output, options, {}).code(),
        StatusCode::kInternal);
  }
}

}  // namespace
}  // namespace tf_hvd

// Adasum: allreduces with that operation, on messages in memory.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "compute/half_float.h"
#include "tests/compute/flushed_denormals.h"
#include "tests/runtime/transport/cluster.h"

namespace tf_hvd {
namespace {

using Vector = std::vector<double>;
using PerRank = std::vector<Vector>;

ReduceOptions Adasum(DType dtype, double prescale = 1.0,
                     double postscale = 1.0) {
  return {dtype, ReduceOp::kAdasum, prescale, postscale, 1.0};
}

double Dot(const Vector& a, const Vector& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

// The definition, for two vectors.
Vector Pair(const Vector& a, const Vector& b) {
  const double ab = Dot(a, b);
  const double of_a = Dot(a, a) > 0.0 ? 1.0 - ab / (2.0 * Dot(a, a)) : 1.0;
  const double of_b = Dot(b, b) > 0.0 ? 1.0 - ab / (2.0 * Dot(b, b)) : 1.0;
  Vector result(a.size());
  for (size_t i = 0; i < a.size(); ++i) result[i] = of_a * a[i] + of_b * b[i];
  return result;
}

// The tree over the places of the ranks, as defined in the header.
Vector Tree(PerRank vectors) {
  size_t tree = 1;
  while (tree * 2 <= vectors.size()) tree *= 2;
  for (size_t extra = tree; extra < vectors.size(); ++extra) {
    vectors[extra - tree] = Pair(vectors[extra - tree], vectors[extra]);
  }
  for (size_t step = 1; step < tree; step *= 2) {
    for (size_t i = 0; i < tree; i += 2 * step) {
      vectors[i] = Pair(vectors[i], vectors[i + step]);
    }
  }
  return vectors[0];
}

PerRank Random(int ranks, size_t count, unsigned seed) {
  std::mt19937 random(seed);
  PerRank values(static_cast<size_t>(ranks), Vector(count));
  for (Vector& mine : values) {
    for (double& value : mine) {
      value = static_cast<double>(random()) / 4294967296.0 - 0.4;
    }
  }
  return values;
}

// Allreduces one span of each size, in place; returns each rank's result. The
// threads of ranks below `flushing` flush denormals.
template <typename T>
std::vector<std::vector<T>> Reduce(std::vector<std::vector<T>> values,
                                   const std::vector<size_t>& sizes,
                                   const ReduceOptions& options,
                                   int flushing = 0) {
  Cluster cluster(static_cast<int>(values.size()));
  cluster.Run([&](int rank, Collectives* data) {
    std::optional<FlushedDenormals> flushed;
    if (rank < flushing) flushed.emplace();
    std::vector<Span> spans;
    T* at = values[static_cast<size_t>(rank)].data();
    for (const size_t size : sizes) {
      spans.push_back({at, at, static_cast<int64_t>(size)});
      at += size;
    }
    return data->Allreduce(cluster.all, spans, options);
  });
  return values;
}

TEST(Adasum, FollowsTheDefinitionOnAnyNumberOfRanks) {
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (const size_t count : {size_t{1}, size_t{7}, size_t{50'000}}) {
      const PerRank values = Random(ranks, count, 7);
      const Vector expected = Tree(values);
      const auto results = Reduce(values, {count}, Adasum(DType::kFloat64));
      for (const Vector& mine : results) {
        EXPECT_EQ(mine, results[0]) << "ranks must have the same bits";
        for (size_t i = 0; i < count; ++i) {
          ASSERT_NEAR(mine[i], expected[i], 1e-12 * count)
              << ranks << " ranks, element " << i;
        }
      }
    }
  }
}

TEST(Adasum, EachSpanIsASeparateVector) {
  const PerRank values = Random(4, 12, 3);
  const auto together = Reduce(values, {5, 0, 7}, Adasum(DType::kFloat64));
  const auto part = [&](size_t begin, size_t end) {
    PerRank parts;
    for (const Vector& mine : values) {
      parts.emplace_back(mine.begin() + static_cast<ptrdiff_t>(begin),
                         mine.begin() + static_cast<ptrdiff_t>(end));
    }
    return Tree(parts);
  };
  Vector expected = part(0, 5);
  const Vector second = part(5, 12);
  expected.insert(expected.end(), second.begin(), second.end());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(together[0][i], expected[i], 1e-12);
  }
}

TEST(Adasum, HalfPrecisionsAreCombinedInFloat32) {
  // These differ by 1/3: one rounding at the end, not three.
  const std::vector<uint16_t> one = {FloatToHalf(1.0f), FloatToHalf(0.0f)};
  const std::vector<uint16_t> other = {FloatToHalf(0.0f), FloatToHalf(0.5f)};
  const auto result =
      Reduce<uint16_t>({one, other, one, other}, {2}, Adasum(DType::kFloat16));
  for (const auto& mine : result) {
    EXPECT_EQ(HalfToFloat(mine[0]), 1.0f);
    EXPECT_EQ(HalfToFloat(mine[1]), 0.5f);
  }
}

// Whether the thread that runs a piece of work flushes them depends on which is
// faster, a thread of TensorFlow or the runtime's.
template <typename T>
void CheckDenormals(DType dtype, const std::vector<std::vector<T>>& values,
                    const std::vector<T>& expected) {
  const auto ranks = static_cast<int>(values.size());
  for (int flushing = 0; flushing <= ranks; ++flushing) {
    const auto results =
        Reduce(values, {expected.size()}, Adasum(dtype), flushing);
    for (const std::vector<T>& mine : results) {
      EXPECT_EQ(std::memcmp(mine.data(), expected.data(),
                            expected.size() * sizeof(T)),
                0)
          << flushing << " of " << ranks << " ranks flush denormals";
    }
  }
}

TEST(Adasum, ThreadsThatFlushDenormalsGetTheSameBits) {
  const float f = std::numeric_limits<float>::denorm_min();
  CheckDenormals<float>(DType::kFloat32,
                        {{3 * f, 0, 0}, {0, 5 * f, 0}, {0, 0, 7 * f}},
                        {3 * f, 5 * f, 7 * f});
  // Products that underflow to zero: the sum of equal vectors.
  const double d = std::numeric_limits<double>::denorm_min();
  CheckDenormals<double>(DType::kFloat64, {{3 * d}, {3 * d}}, {6 * d});
  // Products that are denormal: their average.
  const double root = std::ldexp(1.0, -530);
  CheckDenormals<double>(DType::kFloat64, {{root, root}, {root, root}},
                         {root, root});
}

TEST(Adasum, JoinedRankAddsNothing) {
  std::vector<float> values = {1.0f, 2.0f};
  Cluster cluster(3);
  cluster.Run([&](int rank, Collectives* data) {
    Span span{nullptr, nullptr, 2};
    if (rank == 1) span = {values.data(), values.data(), 2};
    return data->Allreduce(cluster.all, {span}, Adasum(DType::kFloat32));
  });
  EXPECT_EQ(values, (std::vector<float>{1.0f, 2.0f}));
}

}  // namespace
}  // namespace tf_hvd

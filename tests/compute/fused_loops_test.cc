// Every variant that this processor supports gives the results of the loops of
// buffer_ops_cpu.cc in sequence.
#include "compute/fused_loops.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "compute/buffer_ops.h"
#include "tests/compute/nan_aware.h"

namespace tf_hvd {
namespace {

constexpr ReduceOp kOps[] = {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
                             ReduceOp::kProduct};

constexpr FusedScales kScales[] = {{1, 1, 1},   {1, 1.0 / 3, 1}, {1, 1, 7},
                                   {1, 0.1, 3}, {0.1, 1, 1},     {0.3, 0.7, 5}};

void Check(const FusedVariant& variant, DType dtype, ReduceOp op,
           const FusedScales& scales, size_t ranks, int64_t count) {
  const FusedLoop loop = FusedLoopOf(variant, dtype, op, ScaledBy(scales));
  if (loop == nullptr) return;
  std::mt19937_64 random(static_cast<uint64_t>(count) * 31 + ranks);
  const size_t bytes = static_cast<size_t>(count) * SizeOf(dtype);
  std::vector<std::vector<char>> inputs(ranks, std::vector<char>(bytes));
  std::vector<const void*> pointers;
  for (auto& input : inputs) {
    for (char& byte : input) byte = static_cast<char>(random());
    pointers.push_back(input.data());
  }
  std::vector<char> sums(static_cast<size_t>(count) *
                         SizeOf(AccumulatorOf(dtype)));
  std::vector<char> expected(bytes);
  LoadAccumulator(dtype, sums.data(), inputs[0].data(), count, scales.before);
  for (size_t i = 1; i < ranks; ++i) {
    Accumulate(dtype, op, sums.data(), inputs[i].data(), count, scales.before);
  }
  StoreAccumulator(dtype, expected.data(), sums.data(), count, scales.after,
                   scales.divisor);
  std::vector<char> output(bytes);
  // In place, as an allreduce does.
  loop(pointers.data(), ranks, count, scales, output.data(), inputs[0].data());
  const std::string_view wanted(expected.data(), bytes);
  EXPECT_EQ(FirstDifference(dtype, {output.data(), bytes}, wanted), -1);
  EXPECT_EQ(FirstDifference(dtype, {inputs[0].data(), bytes}, wanted), -1);
}

// From any byte to any byte, and not one beyond the end.
TEST(FusedLoops, EveryVariantStreamsExactlyTheBytes) {
  constexpr size_t kRoom = 1024;
  std::vector<char> from(kRoom);
  for (size_t i = 0; i < kRoom; ++i) from[i] = static_cast<char>(i % 251 + 1);
  for (const FusedVariant& variant : FusedVariants()) {
    if (!variant.supported()) continue;
    for (size_t to_at = 0; to_at < 66; ++to_at) {
      for (const size_t bytes : {0u, 1u, 63u, 64u, 65u, 127u, 128u, 500u}) {
        for (const size_t from_at : {0u, 1u, 36u}) {
          std::vector<char> to(kRoom);
          variant.stream(to.data() + to_at, from.data() + from_at, bytes);
          std::vector<char> expected(kRoom);
          std::copy_n(from.data() + from_at, bytes, expected.data() + to_at);
          ASSERT_EQ(to, expected)
              << variant.name << ": " << bytes << " bytes to " << to_at;
        }
      }
    }
  }
}

TEST(FusedLoops, EveryVariantGivesTheSameBits) {
  for (const FusedVariant& variant : FusedVariants()) {
    if (!variant.supported()) continue;
    for (int number = 0; number < kDTypeCount; ++number) {
      const auto dtype = static_cast<DType>(number);
      for (const ReduceOp op : kOps) {
        SCOPED_TRACE(std::string(variant.name) + " " + NameOf(dtype) + " " +
                     NameOf(op));
        for (const FusedScales& scales : kScales) {
          for (const size_t ranks : {1u, 2u, 3u, 5u}) {
            for (const int64_t count : {1, 7, 64, 1003}) {
              Check(variant, dtype, op, scales, ranks, count);
            }
          }
        }
      }
    }
  }
}

TEST(FusedLoops, TheBaselineIsAlwaysAvailable) {
  EXPECT_STREQ(FusedVariants().back().name, "baseline");
  EXPECT_TRUE(FusedVariants().back().supported());
  EXPECT_NE(FusedLoopOf(DType::kFloat32, ReduceOp::kSum, kQuotient), nullptr);
  EXPECT_NE(FusedLoopOf(DType::kInt64, ReduceOp::kSum, kUnscaled), nullptr);
  EXPECT_EQ(FusedLoopOf(DType::kInt64, ReduceOp::kSum, kProduct), nullptr)
      << "integers are scaled in float64";
  EXPECT_EQ(FusedLoopOf(DType::kBool, ReduceOp::kSum, kUnscaled), nullptr);
}

}  // namespace
}  // namespace tf_hvd

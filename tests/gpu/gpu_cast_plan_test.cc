// Compression on GPUs: the casts are those launches that pack and unpack.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/gpu/plan_text.h"

namespace tf_hvd {
namespace {

constexpr ReduceOptions kAverageOfHalves = {DType::kFloat16, ReduceOp::kAverage,
                                            1.0, 1.0, 1.0};

OperationSpec Stored(OperationSpec spec) {
  spec.stored = DType::kFloat32;
  return spec;
}

TEST(GpuCastPlan, OneLaunchPacksAndCastsOneCastsAndUnpacks) {
  const auto steps = Plan(Stored(Allreduce({5, 7, 1}, kAverageOfHalves)));
  EXPECT_EQ(Text(steps),
            "narrow_float16 x3, allreduce 17 float16 sum, widen_float16 x3 "
            "*0.25");
  // Elements are those of the narrow type.
  EXPECT_EQ(MoveAt(steps, 0).rows[1].end, 12);
  EXPECT_EQ(MoveAt(steps, 0).rows[1].output, kStaging + 8 * 2);
  EXPECT_EQ(MoveAt(steps, 2).rows[1].input, kStaging + 8 * 2);
}

TEST(GpuCastPlan, ALargeTensorGoesInPieces) {
  const auto steps = Plan(Stored(Allreduce({5000}, kAverageOfHalves)));
  EXPECT_EQ(CallsOf(steps),
            "allreduce 2048 float16 sum, allreduce 2048 float16 sum, allreduce "
            "904 float16 sum, ");
  EXPECT_EQ(MoveAt(steps, 3).rows[0].input, Tensor(0) + 2048 * 4);
  EXPECT_EQ(MoveAt(steps, 5).rows[0].output, Tensor(1) + 2048 * 4);
}

TEST(GpuCastPlan, OneRankRoundsAllTheSame) {
  const ReduceOptions options = {DType::kBfloat16, ReduceOp::kSum, 3.0, 1.0,
                                 1.0};
  EXPECT_EQ(Text(Plan(Stored(Allreduce({5, 7}, options, 1)))),
            "narrow_bfloat16 x2 *3, widen_bfloat16 x2");
}

TEST(GpuCastPlan, RowsOfAReducescatterLieAsFarApartAsTheyAreStored) {
  OperationSpec spec = Stored(Spec(OpKind::kReducescatter, 2));
  spec.reduce = kAverageOfHalves;
  spec.spans = {{Tensor(0), Tensor(1), 6}, {Tensor(0) + 6 * 4, Tensor(1), 5}};
  const auto steps = Plan(spec, 1);
  EXPECT_EQ(Text(steps),
            "narrow_float16 x2, reducescatter 6 float16 sum, widen_float16 x1 "
            "*0.5");
  EXPECT_EQ(MoveAt(steps, 0).rows[1].input, Tensor(0) + 6 * 4);
  EXPECT_EQ(MoveAt(steps, 0).rows[1].output, kStaging + 6 * 2);
  EXPECT_EQ(MoveAt(steps, 2).rows[0].input, kStaging + 6 * 2);
}

}  // namespace
}  // namespace tf_hvd

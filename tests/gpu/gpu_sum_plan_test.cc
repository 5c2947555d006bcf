// The steps of sums on GPUs that use only messages. gpu_program_test.cc checks
// that they stay within their memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/sum_plan.h"
#include "tests/gpu/plan_text.h"

namespace tf_hvd {
namespace {

ReduceOptions Sum(DType dtype) { return {dtype, ReduceOp::kSum, 1, 1, 1}; }

// Rows of two tensors, with these numbers of elements per rank.
OperationSpec Reducescatter(const std::vector<int64_t>& counts, DType dtype) {
  OperationSpec spec =
      Spec(OpKind::kReducescatter, static_cast<int>(counts.size()));
  spec.reduce = Sum(dtype);
  for (size_t i = 0; i < counts.size(); ++i) {
    spec.spans.push_back({Tensor(static_cast<int>(i)), Tensor(20), counts[i]});
  }
  return spec;
}

TEST(MpiCanDo, SumsAndMovesOfBytes) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    OperationSpec spec = Allreduce({4}, Sum(dtype));
    EXPECT_EQ(MpiCanDo(spec), dtype != DType::kBool) << NameOf(dtype);
    for (const ReduceOp op :
         {ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      spec.reduce.op = op;
      EXPECT_FALSE(MpiCanDo(spec)) << NameOf(dtype);
    }
  }
  OperationSpec adasum = Allreduce({4}, Sum(DType::kFloat32));
  adasum.reduce.op = ReduceOp::kAdasum;
  EXPECT_FALSE(MpiCanDo(adasum));
  for (const OpKind kind :
       {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kAlltoall}) {
    EXPECT_TRUE(MpiCanDo(Spec(kind, 2)));
  }
}

TEST(GpuSumPlan, PartsAreExchangedAddedAndGathered) {
  const std::string exchange = "alltoall >8 >8 >8 >8 <8 <8 <8 <8, ";
  const std::string of_halves = "alltoall >4 >4 >4 >4 <4 <4 <4 <4, ";
  const ReduceOptions mean = {DType::kInt32, ReduceOp::kAverage, 2, 3, 1};
  ReduceOptions mean_of_halves = mean;
  mean_of_halves.dtype = DType::kBfloat16;
  OperationSpec compressed = Allreduce({8}, Sum(DType::kFloat16));
  compressed.stored = DType::kFloat32;
  const std::pair<OperationSpec, std::string> kRows[] = {
      {Allreduce({8}, Sum(DType::kFloat32)),
       "copy_8 x1, " + exchange +
           "sum_float32 4x2, allgather 8 uint8, copy_8 x1"},
      // The last part is padded with elements that are never read.
      {Allreduce({3, 4}, Sum(DType::kInt64), 3),
       "copy_8 x2, alltoall >24 >24 >24 <24 <24 <24, "
       "sum_uint64 3x3, allgather 24 uint8, copy_8 x2"},
      // The sum is rounded once, after all factors.
      {Allreduce({8}, mean_of_halves),
       "scale_bfloat16 x1 *2, " + of_halves +
           "cast_bfloat16_float32 x1, sum_float32 4x2, "
           "cast_float32_bfloat16 x1 *3 /4, allgather 4 uint8, copy_8 x1"},
      // Other types are scaled when they are unpacked.
      {Allreduce({8}, mean),
       "scale_int32 x1 *2, " + exchange +
           "sum_uint32 4x2, allgather 8 uint8, scale_int32 x1 *3 /4"},
      {compressed,
       "narrow_float16 x1, " + of_halves +
           "cast_float16_float32 x1, sum_float32 4x2, "
           "cast_float32_float16 x1, allgather 4 uint8, widen_float16 x1"},
      {Reducescatter({3, 2}, DType::kFloat32),
       "copy_4 x2, alltoall >12 >12 <12 <12, sum_float32 2x3, "
       "copy_4 x1"},
      {Allreduce({0, 0}, Sum(DType::kFloat32)), ""},
      {Reducescatter({0, 0}, DType::kFloat32), ""}};
  for (const auto& [spec, steps] : kRows) {
    EXPECT_EQ(Text(PlanIn(spec, 0, 4096, true)), steps);
  }
}

// 4096 bytes: sent and received, for 4 ranks, 128 elements of 4 bytes each.
TEST(GpuSumPlan, CutsWhereTheStagingMemoryEnds) {
  const auto calls = [](int64_t count) {
    return CallsOf(
        PlanIn(Allreduce({count}, Sum(DType::kFloat32)), 0, 4096, true));
  };
  const std::string full =
      "alltoall >512 >512 >512 >512 <512 <512 <512 <512, "
      "allgather 512 uint8, ";
  EXPECT_EQ(calls(512), full);
  EXPECT_EQ(calls(513), full +
                            "alltoall >4 >4 >4 >4 <4 <4 <4 <4, "
                            "allgather 4 uint8, ");
}

TEST(GpuSumPlan, CallsAreEqualOnAllRanksAndAfterJoins) {
  const OperationSpec spec = Allreduce({700, 5}, Sum(DType::kFloat16), 3);
  OperationSpec wide = spec;
  wide.stored = DType::kFloat32;
  std::set<std::string> calls;
  for (size_t me = 0; me < 3; ++me) {
    for (const OperationSpec& one : {spec, Joined(spec), wide}) {
      calls.insert(CallsOf(PlanIn(one, me, 4096, true)));
    }
  }
  EXPECT_EQ(calls.size(), 1u);
}

}  // namespace
}  // namespace tf_hvd

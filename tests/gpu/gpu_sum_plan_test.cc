// The steps of sums on GPUs where messages alone lie between them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "runtime/transport/gpu/sum_plan.h"
#include "tests/gpu/plan_text.h"

namespace tf_hvd {
namespace {

ReduceOptions Sum(DType dtype) { return {dtype, ReduceOp::kSum, 1, 1, 1}; }

std::string TextByMpi(const OperationSpec& spec, size_t me = 0,
                      size_t staging_bytes = 4096) {
  return Text(PlanIn(spec, me, staging_bytes, true));
}

// Rows of two tensors, of so many elements for each rank.
OperationSpec Reducescatter(const std::vector<int64_t>& counts, DType dtype) {
  OperationSpec spec =
      Spec(OpKind::kReducescatter, static_cast<int>(counts.size()));
  spec.reduce = Sum(dtype);
  for (size_t i = 0; i < counts.size(); ++i) {
    spec.spans.push_back({Tensor(static_cast<int>(i)), Tensor(20), counts[i]});
  }
  return spec;
}

TEST(MpiCanDo, SumsAndWhatMovesBytes) {
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
  EXPECT_EQ(TextByMpi(Allreduce({8}, Sum(DType::kFloat32))),
            "copy_8 x1, alltoall >8 >8 >8 >8 <8 <8 <8 <8, "
            "sum_float32 4x2, allgather 8 uint8, copy_8 x1");
}

// The last part is filled up with what nobody looks at.
TEST(GpuSumPlan, TensorsTogetherAreOneRun) {
  EXPECT_EQ(TextByMpi(Allreduce({3, 4}, Sum(DType::kInt64), 3)),
            "copy_8 x2, alltoall >24 >24 >24 <24 <24 <24, "
            "sum_uint64 3x3, allgather 24 uint8, copy_8 x2");
}

TEST(GpuSumPlan, KernelsAreThoseOfTheNumbersParts) {
  const auto kernel_of = [](DType dtype) {
    const std::string text = TextByMpi(Allreduce({8}, Sum(dtype)));
    const size_t begin = text.find("sum_");
    return text.substr(begin, text.find(',', begin) - begin);
  };
  EXPECT_EQ(kernel_of(DType::kInt8), "sum_uint8 4x2");
  EXPECT_EQ(kernel_of(DType::kUint16), "sum_uint16 4x2");
  EXPECT_EQ(kernel_of(DType::kInt32), "sum_uint32 4x2");
  EXPECT_EQ(kernel_of(DType::kFloat64), "sum_float64 4x2");
  EXPECT_EQ(kernel_of(DType::kComplex64), "sum_float32 4x4");
  EXPECT_EQ(kernel_of(DType::kComplex128), "sum_float64 4x4");
}

// The sum is rounded once, with all factors behind it.
TEST(GpuSumPlan, HalfPrecisionsAreAddedInFloat32) {
  ReduceOptions mean = {DType::kBfloat16, ReduceOp::kAverage, 2, 3, 1};
  EXPECT_EQ(TextByMpi(Allreduce({8}, mean)),
            "scale_bfloat16 x1 *2, alltoall >4 >4 >4 >4 <4 <4 <4 <4, "
            "cast_bfloat16_float32 x1, sum_float32 4x2, "
            "cast_float32_bfloat16 x1 *3 /4, allgather 4 uint8, copy_8 x1");
}

TEST(GpuSumPlan, OthersAreScaledWhenTheyAreUnpacked) {
  ReduceOptions mean = {DType::kInt32, ReduceOp::kAverage, 2, 3, 1};
  EXPECT_EQ(TextByMpi(Allreduce({8}, mean)),
            "scale_int32 x1 *2, alltoall >8 >8 >8 >8 <8 <8 <8 <8, "
            "sum_uint32 4x2, allgather 8 uint8, scale_int32 x1 *3 /4");
}

TEST(GpuSumPlan, CompressedTensorsTravelAsHalfPrecisions) {
  OperationSpec spec = Allreduce({8}, Sum(DType::kFloat16));
  spec.stored = DType::kFloat32;
  EXPECT_EQ(TextByMpi(spec),
            "narrow_float16 x1, alltoall >4 >4 >4 >4 <4 <4 <4 <4, "
            "cast_float16_float32 x1, sum_float32 4x2, "
            "cast_float32_float16 x1, allgather 4 uint8, widen_float16 x1");
}

// Without a gather.
TEST(GpuSumPlan, ReducescatterKeepsItsPart) {
  EXPECT_EQ(TextByMpi(Reducescatter({3, 2}, DType::kFloat32), 1),
            "copy_4 x2, alltoall >12 >12 <12 <12, sum_float32 2x3, "
            "copy_4 x1");
}

// 4096 bytes: given and received, of 4 ranks, 128 elements of 4 bytes each.
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

TEST(GpuSumPlan, NothingIsDoneForNoElements) {
  EXPECT_EQ(TextByMpi(Allreduce({0, 0}, Sum(DType::kFloat32))), "");
  EXPECT_EQ(TextByMpi(Reducescatter({0, 0}, DType::kFloat32)), "");
}

TEST(GpuSumPlan, CallsAreTheSameWhoeverHasJoinedAndOnAllRanks) {
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

// One past what a step writes to the staging memory.
const char* EndOf(const GpuStep& step, int ranks) {
  if (const auto* const call = std::get_if<GpuCall>(&step)) {
    const int64_t part = call->kind == OpKind::kAlltoall
                             ? call->receive[0]
                             : static_cast<int64_t>(call->count);
    return static_cast<char*>(call->output) + ranks * part;
  }
  if (const auto* const sum = std::get_if<GpuSum>(&step)) {
    const size_t digits = sum->kernel.find_last_not_of("0123456789") + 1;
    const int64_t bytes = std::stoi(sum->kernel.substr(digits)) / 8;
    return static_cast<char*>(sum->arguments.sums) +
           sum->arguments.count * bytes;
  }
  const auto& move = std::get<GpuMove>(step);
  const bool widens = move.kernel.rfind("_float32") != std::string::npos;
  if (move.kernel.find("cast") == std::string::npos) return kStaging;
  return static_cast<char*>(move.rows[0].output) +
         move.rows[0].end * (widens ? 4 : 2);
}

TEST(GpuSumPlan, ItsMemoryHoldsAll) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kBool) continue;
    const OperationSpec spec = Allreduce({5000}, Sum(dtype));
    const char* last = kStaging;
    for (const GpuStep& step : PlanIn(spec, 3, 4096, true)) {
      last = std::max(last, EndOf(step, 4));
    }
    EXPECT_LE(last, kStaging + 4096) << NameOf(dtype);
    EXPECT_GT(last, kStaging + 3000) << NameOf(dtype);
  }
}

}  // namespace
}  // namespace tf_hvd

// The parts of operations on GPUs: the number of launches and calls, and the
// cuts (plan_text.h). gpu_program_test.cc checks the addresses that each step
// reads and writes, through the results.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "runtime/transport/gpu/plan.h"
#include "tests/gpu/plan_text.h"

namespace tf_hvd {
namespace {

ReduceOptions Options(DType dtype, ReduceOp op = ReduceOp::kSum,
                      double prescale = 1, double postscale = 1) {
  return {dtype, op, prescale, postscale, 1};
}

const ReduceOptions kFloats = Options(DType::kFloat32);

TEST(NcclCanDo, TypesWithTheResultsOfTheCpu) {
  const std::string numbers = "Average Sum Min Max Product ";
  const std::string floats = "Average Sum Product ";
  const std::string complex = "Average Sum ";
  const std::string bools = "Sum Min Max Product ";
  const std::string none;
  const std::string table[kDTypeCount] = {
      numbers, numbers, none,   none,    numbers, numbers, floats, floats,
      floats,  bools,   floats, numbers, numbers, complex, complex};
  for (int i = 0; i < kDTypeCount; ++i) {
    for (const OpKind kind : {OpKind::kAllreduce, OpKind::kReducescatter}) {
      OperationSpec spec = Spec(kind, 2);
      spec.reduce.dtype = static_cast<DType>(i);
      std::string can;
      for (const ReduceOp op :
           {ReduceOp::kAverage, ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax,
            ReduceOp::kProduct}) {
        spec.reduce.op = op;
        if (NcclCanDo(spec)) can += std::string(NameOf(op)) + " ";
      }
      EXPECT_EQ(can, table[i]) << NameOf(spec.reduce.dtype);
      spec.reduce.op = ReduceOp::kAdasum;
      EXPECT_FALSE(NcclCanDo(spec)) << NameOf(spec.reduce.dtype);
    }
  }
}

TEST(NcclCanDo, OperationsThatOnlyMoveBytes) {
  for (const OpKind kind :
       {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kAlltoall}) {
    OperationSpec spec = Spec(kind, 2);
    spec.reduce.dtype = DType::kInt16;
    EXPECT_TRUE(NcclCanDo(spec)) << NameOf(kind);
  }
}

OperationSpec Stored(OperationSpec spec) {
  spec.stored = DType::kFloat32;
  return spec;
}

OperationSpec Broadcast(const std::vector<int64_t>& bytes, size_t root) {
  OperationSpec spec = Allreduce(bytes, kFloats);
  spec.kind = OpKind::kBroadcast;
  spec.root = root;
  return spec;
}

// `counts`: by rank and tensor. Tensor t of all ranks is contiguous.
OperationSpec ByRank(OpKind kind,
                     const std::vector<std::vector<int64_t>>& counts) {
  OperationSpec spec = Spec(kind, static_cast<int>(counts.size()));
  spec.reduce = kFloats;
  const bool gathers = kind == OpKind::kAllgather;
  const int64_t element = gathers ? 1 : 4;
  std::vector<int64_t> before(counts[0].size());
  for (const auto& of_rank : counts) {
    for (size_t t = 0; t < of_rank.size(); ++t) {
      const int number = static_cast<int>(2 * t);
      char* const input = Tensor(number) + (gathers ? 0 : before[t] * element);
      char* const output =
          Tensor(number + 1) + (gathers ? before[t] * element : 0);
      spec.spans.push_back({input, output, of_rank[t]});
      before[t] += of_rank[t];
    }
  }
  return spec;
}

OperationSpec Alltoall(std::vector<int64_t> send,
                       std::vector<int64_t> receive) {
  OperationSpec spec = Spec(OpKind::kAlltoall, static_cast<int>(send.size()));
  spec.input = Tensor(0);
  spec.output = Tensor(1);
  spec.send = std::move(send);
  spec.receive = std::move(receive);
  return spec;
}

struct Planned {
  OperationSpec spec;
  std::string steps;
  size_t me = 0;
};

void ExpectSteps(const std::vector<Planned>& rows) {
  for (const Planned& row : rows) {
    EXPECT_EQ(Text(Plan(row.spec, row.me)), row.steps);
  }
}

TEST(GpuPlan, OneTensorIsNotPackedAndABucketIsOneCall) {
  const OperationSpec bucket = Allreduce({10, 0, 6, 1}, kFloats);
  const std::string steps = "copy_4 x3, allreduce 21 float32 sum, copy_4 x3";
  ExpectSteps({{Allreduce({10}, kFloats), "allreduce 10 float32 sum"},
               {InPlace(Allreduce({10}, kFloats)), "allreduce 10 float32 sum"},
               {bucket, steps},
               {InPlace(bucket), steps},
               {Allreduce({0, 0}, kFloats), ""},
               {Allreduce({}, kFloats), ""}});
}

struct ScaledRow {
  ReduceOptions options;
  const char* one;     // tensor of 8
  const char* bucket;  // of 8 and 8
};

TEST(GpuPlan, FactorsAreAppliedWhilePackingAndUnpacking) {
  for (const ScaledRow& row : std::vector<ScaledRow>{
           {Options(DType::kFloat32, ReduceOp::kAverage),
            "allreduce 8 float32 sum, scale_float32 x1 *0.25",
            "copy_8 x2, allreduce 16 float32 sum, scale_float32 x2 *0.25"},
           {Options(DType::kFloat32, ReduceOp::kAverage, 1, 5),
            "allreduce 8 float32 sum, scale_float32 x1 *5 /4",
            "copy_8 x2, allreduce 16 float32 sum, scale_float32 x2 *5 /4"},
           {Options(DType::kInt64, ReduceOp::kAverage, 3, 5),
            "scale_int64 x1 *3, allreduce 8 int64 sum, scale_int64 x1 *5 /4",
            "scale_int64 x2 *3, allreduce 16 int64 sum, "
            "scale_int64 x2 *5 /4"},
           {Options(DType::kFloat16, ReduceOp::kSum, 3),
            "scale_float16 x1 *3, allreduce 8 float16 sum",
            "scale_float16 x2 *3, allreduce 16 float16 sum, copy_8 x2"},
           {Options(DType::kBfloat16, ReduceOp::kSum, 1, 3),
            "allreduce 8 bfloat16 sum, scale_bfloat16 x1 *3",
            "copy_8 x2, allreduce 16 bfloat16 sum, scale_bfloat16 x2 *3"},
           {Options(DType::kComplex64, ReduceOp::kAverage),
            "allreduce 16 float32 sum, scale_float32 x1 *0.25",
            "copy_8 x2, allreduce 32 float32 sum, scale_float32 x2 *0.25"},
           // Converted to 0 and 1 when packed; bools ignore factors.
           {Options(DType::kBool, ReduceOp::kSum, 2, 3),
            "scale_bool x1, allreduce 8 uint8 max",
            "scale_bool x2, allreduce 24 uint8 max, copy_8 x2"},
           {Options(DType::kFloat64, ReduceOp::kProduct),
            "allreduce 8 float64 product",
            "copy_8 x2, allreduce 16 float64 product, copy_8 x2"},
       }) {
    EXPECT_EQ(Text(Plan(Allreduce({8}, row.options))), row.one);
    EXPECT_EQ(Text(Plan(Allreduce({8, 8}, row.options))), row.bucket);
  }
}

TEST(GpuPlan, ARankThatHasJoinedGivesZerosInItsStagingMemory) {
  const auto average = Options(DType::kInt32, ReduceOp::kAverage, 3);
  ExpectSteps(
      {{Joined(Allreduce({8}, kFloats)), "copy_8 x1, allreduce 8 float32 sum"},
       {Joined(Allreduce({8, 8}, average)),
        "scale_int32 x2 *3, allreduce 16 int32 sum"}});
  // Zeros for large tensors have separate memory.
  const GpuPlan plan =
      PlanPieces(Joined(Allreduce({10, 2000}, kFloats)), 0, 8192);
  EXPECT_EQ(Text(StepsOf(plan)), "copy_8 x2, allreduce 10+2000 float32 sum");
  EXPECT_EQ(plan.spare_bytes, 8000u);
  EXPECT_EQ(plan.pieces[0].uses, unsigned{kFirstHalf} | unsigned{kSpare});
  EXPECT_EQ(PlanPieces(Joined(Allreduce({1000}, kFloats)), 0, 8192).spare_bytes,
            0u);
}

// Tensors of 512 floats and more, up to 2048 in one call; 1024 elements of
// smaller ones fit in a half.
TEST(GpuPlan, LargeTensorsStayInPlaceAndShareACall) {
  const auto average = Options(DType::kFloat32, ReduceOp::kAverage, 2);
  ExpectSteps({{Allreduce({10, 512, 10, 600}, kFloats),
                "copy_8 x2, allreduce 22+512+600 float32 sum, copy_8 x2"},
               {Allreduce({10, 512}, average, 3),
                "scale_float32 x2 *2, allreduce 10+512 float32 sum, "
                "scale_float32 x2 /3"},
               {Allreduce({5000}, kFloats),
                "allreduce 2048 float32 sum, allreduce 2048 float32 sum, "
                "allreduce 904 float32 sum"},
               {Allreduce({1000, 1000, 1000}, kFloats),
                "allreduce 1000+1000 float32 sum, allreduce 1000 float32 sum"},
               {Allreduce({500, 500, 24, 1, 509, 508, 2}, kFloats),
                "copy_8 x3, allreduce 1024 float32 sum, copy_8 x3, "
                "copy_4 x3, allreduce 1024 float32 sum, copy_4 x3, "
                "copy_8 x1, allreduce 2 float32 sum, copy_8 x1"}});
  const GpuPlan plan = PlanPieces(Allreduce({10, 512}, kFloats), 0, 8192);
  ASSERT_EQ(plan.pieces.size(), 1u);
  EXPECT_EQ(plan.pieces[0].uses, kFirstHalf);
}

// Some ranks may cast them, which needs the staging memory.
TEST(GpuPlan, HalfPrecisionsAreCutAsForRanksThatCast) {
  for (const DType dtype : {DType::kFloat16, DType::kBfloat16}) {
    const std::string name = NameOf(dtype);
    // 2048 of them fit in a half.
    const OperationSpec spec =
        Allreduce({10, 5000, 10, 600, 2048}, Options(dtype));
    const auto call = [&](const std::string& count) {
      return "allreduce " + count + " " + name + " sum, ";
    };
    const std::string calls = call("10") + call("2048") + call("2048") +
                              call("904") + call("616") + call("2048");
    EXPECT_EQ(CallsOf(Plan(spec)), calls);
    EXPECT_EQ(CallsOf(Plan(Stored(spec))), calls);
    EXPECT_EQ(CallsOf(Plan(Joined(spec))), calls);
  }
}

// One is packed while the other is being sent.
TEST(GpuPlan, PiecesAlternateBetweenTheHalves) {
  GpuStaging staging;
  staging.memory = kStaging;
  staging.bytes = 8192;
  staging.half = kSecondHalf;
  const OperationSpec spec = Allreduce({500, 500, 500, 500, 500}, kFloats);
  const GpuPlan plan = PlanOnGpu(spec, 0, staging, kLimits);
  ASSERT_EQ(plan.pieces.size(), 3u);
  const GpuMemory halves[] = {kSecondHalf, kFirstHalf, kSecondHalf};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.pieces[i].uses, halves[i]);
    const auto& call = std::get<GpuCall>(plan.pieces[i].steps[0]);
    EXPECT_EQ(call.input, kStaging + (halves[i] == kFirstHalf ? 0 : 4096));
  }
  EXPECT_EQ(plan.next_half, kFirstHalf);
}

// The end of a half beyond the last multiple of 64 bytes is not used.
TEST(GpuPlan, PiecesAreMultiplesOf64Bytes) {
  EXPECT_EQ(CallsOf(Plan(Allreduce({40}, Options(DType::kFloat16)), 0, 127)),
            "allreduce 32 float16 sum, allreduce 8 float16 sum, ");
}

// Each of its calls sends one tensor.
TEST(GpuPlan, MpiBroadcastsLargeTensorsSeparately) {
  OperationSpec spec = Allreduce({100, 5000, 5000, 100}, kFloats);
  spec.kind = OpKind::kBroadcast;
  EXPECT_EQ(CallsOf(PlanIn(spec, 1, 8192, true)),
            "broadcast 100 uint8 from 0, broadcast 5000 uint8 from 0, "
            "broadcast 5000 uint8 from 0, broadcast 100 uint8 from 0, ");
}

TEST(GpuPlan, OneRankMakesNoCall) {
  const ReduceOptions average = Options(DType::kFloat32, ReduceOp::kAverage);
  const ReduceOptions scaled = Options(DType::kInt8, ReduceOp::kSum, 2, 3);
  ExpectSteps(
      {{Allreduce({8, 7}, average, 1), "copy_4 x2"},
       {InPlace(Allreduce({8, 7}, average, 1)), ""},
       {Allreduce({9000}, scaled, 1), "scale_int8 x1 *2, scale_int8 x1 *3"},
       {Allreduce({8}, Options(DType::kBool), 1), "scale_bool x1"},
       {Alltoall({24}, {24}), "copy_8 x1"}});
}

TEST(GpuPlan, WhatMovesBytes) {
  const std::string broadcast = "broadcast 32 uint8 from 2, copy_8 x2";
  const auto gather = [](const std::vector<std::vector<int64_t>>& bytes) {
    return ByRank(OpKind::kAllgather, bytes);
  };
  ExpectSteps(
      {{Broadcast({8, 16}, 2), "copy_8 x2, " + broadcast, 2},
       {Broadcast({8, 16}, 2), broadcast, 0},
       {Broadcast({7}, 1), "broadcast 7 uint8 from 1", 1},
       {Broadcast({7}, 1), "broadcast 7 uint8 from 1", 0},
       {Alltoall({1, 0, 3}, {1, 5, 0}), "alltoall >1 >0 >3 <1 <5 <0"},
       // All have the same size, so they are not packed.
       {gather({{9000}, {9000}, {9000}}), "allgather 9000 uint8", 1},
       {gather({{8}, {24}, {0}}), "copy_8 x1, allgather 24 uint8, copy_8 x2",
        1},
       {gather({{8}, {24}, {0}}), "allgather 24 uint8, copy_8 x2", 2},
       {gather({{8, 8}, {8, 8}}), "copy_8 x2, allgather 16 uint8, copy_8 x4"},
       {gather({{8, 3}, {7, 3}}), "copy_1 x2, allgather 11 uint8, copy_1 x4"},
       // 4096 / 2 bytes for each rank.
       {gather({{5000}, {2056}}),
        "copy_8 x1, allgather 2048 uint8, copy_8 x2, "
        "copy_8 x1, allgather 2048 uint8, copy_8 x2, "
        "copy_8 x1, allgather 904 uint8, copy_8 x1"},
       {gather({{0}, {0}}), ""}});
}

TEST(GpuPlan, UnevenReducescatterIsPaddedToTheLongest) {
  OperationSpec spec = ByRank(OpKind::kReducescatter, {{4}, {2}, {2}});
  spec.reduce.op = ReduceOp::kAverage;
  ExpectSteps(
      {{spec, "copy_8 x3, reducescatter 4 float32 sum, scale_float32 x1 /3", 1},
       {ByRank(OpKind::kReducescatter, {{0}, {0}}), ""}});
}

// Compression: the launches that pack and unpack also cast.
TEST(GpuPlan, OneLaunchPacksAndCastsOneCastsAndUnpacks) {
  const ReduceOptions average = Options(DType::kFloat16, ReduceOp::kAverage);
  const ReduceOptions scaled = Options(DType::kBfloat16, ReduceOp::kSum, 3);
  OperationSpec rows = ByRank(OpKind::kReducescatter, {{6}, {5}});
  rows.reduce = average;
  ExpectSteps({{Stored(Allreduce({5, 7, 1}, average)),
                "narrow_float16 x3, allreduce 17 float16 sum, "
                "widen_float16 x3 *0.25"},
               {Stored(Allreduce({5, 7}, scaled, 1)),
                "narrow_bfloat16 x2 *3, widen_bfloat16 x2"},
               {Stored(rows),
                "narrow_float16 x2, reducescatter 6 float16 sum, "
                "widen_float16 x1 *0.5",
                1}});
}

TEST(GpuPlan, CallsAreEqualOnAllRanksAndAfterJoins) {
  const std::vector<OperationSpec> specs = {
      Allreduce({8}, kFloats),
      Allreduce({1, 2, 1024, 3, 2000}, kFloats),
      Allreduce({700, 0, 700, 700}, Options(DType::kComplex64)),
      Allreduce({8, 9000}, Options(DType::kBool, ReduceOp::kMin)),
      Broadcast({5, 9000, 8}, 3),
      ByRank(OpKind::kReducescatter, {{900, 1}, {900, 1}, {899, 0}, {899, 0}}),
      ByRank(OpKind::kAllgather, {{900, 1}, {9000, 1}, {0, 0}, {1, 77}}),
  };
  for (const OperationSpec& spec : specs) {
    const std::string calls = CallsOf(Plan(spec, 0));
    EXPECT_NE(calls, "");
    for (size_t me = 1; me < 4; ++me) {
      EXPECT_EQ(CallsOf(Plan(spec, me)), calls);
    }
    EXPECT_EQ(CallsOf(Plan(InPlace(spec))), calls);
    if (spec.kind != OpKind::kAllreduce) continue;
    EXPECT_EQ(CallsOf(Plan(Joined(spec))), calls);
  }
}

}  // namespace
}  // namespace tf_hvd

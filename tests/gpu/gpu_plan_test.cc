// What operations on GPUs are made of; see plan_text.h.
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
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

TEST(NcclCanDo, WhatTheCpuDoesAlike) {
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

TEST(NcclCanDo, WhatOnlyMovesBytes) {
  for (const OpKind kind :
       {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kAlltoall}) {
    OperationSpec spec = Spec(kind, 2);
    spec.reduce.dtype = DType::kInt16;
    EXPECT_TRUE(NcclCanDo(spec)) << NameOf(kind);
  }
}

TEST(GpuPlan, OneTensorIsNotPacked) {
  const OperationSpec spec = Allreduce({10}, kFloats);
  const auto steps = Plan(spec);
  EXPECT_EQ(Text(steps), "allreduce 10 float32 sum");
  EXPECT_EQ(CallAt(steps, 0).input, spec.spans[0].input);
  EXPECT_EQ(CallAt(steps, 0).output, spec.spans[0].output);
}

TEST(GpuPlan, OneTensorInPlace) {
  const OperationSpec spec = InPlace(Allreduce({10}, kFloats));
  const auto steps = Plan(spec);
  EXPECT_EQ(Text(steps), "allreduce 10 float32 sum");
  EXPECT_EQ(CallAt(steps, 0).input, CallAt(steps, 0).output);
}

TEST(GpuPlan, ABucketIsOnePackOneCallAndOneUnpack) {
  const OperationSpec spec = Allreduce({10, 0, 6, 1}, kFloats);
  const auto steps = Plan(spec);
  EXPECT_EQ(Text(steps), "copy_4 x3, allreduce 21 float32 sum, copy_4 x3");
  EXPECT_EQ(CallAt(steps, 1).input, kStaging);
  EXPECT_EQ(CallAt(steps, 1).output, kStaging);
  const GpuMove& pack = MoveAt(steps, 0);
  const GpuMove& unpack = MoveAt(steps, 2);
  size_t row = 0;
  for (const size_t span : {0, 2, 3}) {
    char* const at = kStaging + 4 * (row == 0 ? 0 : row == 1 ? 12 : 20);
    EXPECT_EQ(pack.rows[row].input, spec.spans[span].input);
    EXPECT_EQ(pack.rows[row].output, at);
    EXPECT_EQ(unpack.rows[row].input, at);
    EXPECT_EQ(unpack.rows[row].output, spec.spans[span].output);
    ++row;
  }
  EXPECT_EQ(Text(Plan(InPlace(spec))), Text(steps));
}

TEST(GpuPlan, NothingIsDoneForNoElements) {
  EXPECT_EQ(Text(Plan(Allreduce({0}, kFloats))), "");
  EXPECT_EQ(Text(Plan(Allreduce({0, 0}, kFloats))), "");
  EXPECT_EQ(Text(Plan(Allreduce({}, kFloats))), "");
}

struct ScaledRow {
  ReduceOptions options;
  const char* one;     // tensor of 8
  const char* bucket;  // of 8 and 8
};

TEST(GpuPlan, ScalesGoWithThePackAndTheUnpack) {
  for (const ScaledRow& row : std::vector<ScaledRow>{
           {Options(DType::kFloat32, ReduceOp::kAverage),
            "allreduce 8 float32 sum, scale_float32 x1 *0.25",
            "copy_8 x2, allreduce 16 float32 sum, scale_float32 x2 *0.25"},
           {Options(DType::kFloat32, ReduceOp::kAverage, 1, 5),
            "allreduce 8 float32 sum, scale_float32 x1 *5 /4",
            "copy_8 x2, allreduce 16 float32 sum, scale_float32 x2 *5 /4"},
           {Options(DType::kFloat16, ReduceOp::kAverage),
            "allreduce 8 float16 sum, scale_float16 x1 *0.25",
            "copy_8 x2, allreduce 16 float16 sum, scale_float16 x2 *0.25"},
           {Options(DType::kInt32, ReduceOp::kAverage),
            "allreduce 8 int32 sum, scale_int32 x1 *0.25",
            "copy_8 x2, allreduce 16 int32 sum, scale_int32 x2 *0.25"},
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
           {Options(DType::kComplex128, ReduceOp::kSum),
            "allreduce 16 float64 sum",
            "copy_8 x2, allreduce 32 float64 sum, copy_8 x2"},
           {Options(DType::kUint64, ReduceOp::kMax), "allreduce 8 uint64 max",
            "copy_8 x2, allreduce 16 uint64 max, copy_8 x2"},
           {Options(DType::kFloat64, ReduceOp::kProduct),
            "allreduce 8 float64 product",
            "copy_8 x2, allreduce 16 float64 product, copy_8 x2"},
       }) {
    EXPECT_EQ(Text(Plan(Allreduce({8}, row.options))), row.one);
    EXPECT_EQ(Text(Plan(Allreduce({8, 8}, row.options))), row.bucket);
  }
}

TEST(GpuPlan, EachTypeHasItsNumber) {
  const std::pair<DType, const char*> kRows[] = {
      {DType::kUint8, "3 uint8"},       {DType::kInt8, "3 int8"},
      {DType::kInt32, "3 int32"},       {DType::kInt64, "3 int64"},
      {DType::kUint32, "3 uint32"},     {DType::kUint64, "3 uint64"},
      {DType::kFloat16, "3 float16"},   {DType::kBfloat16, "3 bfloat16"},
      {DType::kFloat32, "3 float32"},   {DType::kFloat64, "3 float64"},
      {DType::kComplex64, "6 float32"}, {DType::kComplex128, "6 float64"}};
  for (const auto& [dtype, name] : kRows) {
    EXPECT_EQ(Text(Plan(Allreduce({3}, Options(dtype)))),
              std::string("allreduce ") + name + " sum");
  }
}

// They are made 0 and 1 on the way in, and take no factor.
TEST(GpuPlan, BoolsAreOrAndAnd) {
  const std::pair<ReduceOp, const char*> kRows[] = {
      {ReduceOp::kSum, "max"},
      {ReduceOp::kMax, "max"},
      {ReduceOp::kMin, "min"},
      {ReduceOp::kProduct, "min"}};
  for (const auto& [op, name] : kRows) {
    const ReduceOptions options = Options(DType::kBool, op, 2, 3);
    const std::string call = std::string(" uint8 ") + name;
    EXPECT_EQ(Text(Plan(Allreduce({8}, options))),
              "scale_bool x1, allreduce 8" + call);
    EXPECT_EQ(Text(Plan(Allreduce({8, 8}, options))),
              "scale_bool x2, allreduce 24" + call + ", copy_8 x2");
  }
}

// In place of the output: the input stays as it is.
TEST(GpuPlan, ScalesOneTensorIntoItsOutput) {
  const OperationSpec spec =
      Allreduce({8}, Options(DType::kFloat32, ReduceOp::kAverage, 2), 3);
  const auto steps = Plan(spec);
  const void* const output = spec.spans[0].output;
  EXPECT_EQ(MoveAt(steps, 0).rows[0].input, spec.spans[0].input);
  EXPECT_EQ(MoveAt(steps, 0).rows[0].output, output);
  EXPECT_EQ(CallAt(steps, 1).input, output);
  EXPECT_EQ(CallAt(steps, 1).output, output);
  EXPECT_EQ(MoveAt(steps, 2).rows[0].input, output);
  EXPECT_EQ(MoveAt(steps, 2).rows[0].output, output);
}

TEST(GpuPlan, ARankThatHasJoinedGivesZerosInItsStagingMemory) {
  const auto one = Plan(Joined(Allreduce({8}, kFloats)));
  EXPECT_EQ(Text(one), "copy_8 x1, allreduce 8 float32 sum");
  EXPECT_EQ(MoveAt(one, 0).rows[0].input, nullptr);
  EXPECT_EQ(MoveAt(one, 0).rows[0].output, kStaging);
  EXPECT_EQ(CallAt(one, 1).input, kStaging);
  EXPECT_EQ(CallAt(one, 1).output, kStaging);
  const auto average = Options(DType::kInt32, ReduceOp::kAverage, 3);
  EXPECT_EQ(Text(Plan(Joined(Allreduce({8, 8}, average)))),
            "scale_int32 x2 *3, allreduce 16 int32 sum");
}

// 512 floats and more, up to 2048 in one call; 1024 of others fit in a half.
TEST(GpuPlan, LargeTensorsStayWhereTheyAreAndGoWithTheOthers) {
  const OperationSpec spec = Allreduce({10, 512, 10, 600}, kFloats);
  const GpuPlan plan = PlanPieces(spec, 0, 8192);
  EXPECT_EQ(Text(StepsOf(plan)),
            "copy_8 x2, allreduce 22+512+600 float32 sum, copy_8 x2");
  ASSERT_EQ(plan.pieces.size(), 1u);
  EXPECT_EQ(plan.pieces[0].uses, kFirstHalf);
  const auto steps = StepsOf(plan);
  const GpuCall& call = CallAt(steps, 1);
  EXPECT_EQ(call.input, kStaging);
  EXPECT_EQ(call.others[0].input, spec.spans[1].input);
  EXPECT_EQ(call.others[0].output, spec.spans[1].output);
  EXPECT_EQ(call.others[1].output, spec.spans[3].output);
}

TEST(GpuPlan, LargeTensorsAreScaledInTheSameLaunches) {
  const auto average = Options(DType::kFloat32, ReduceOp::kAverage, 2);
  const OperationSpec spec = Allreduce({10, 512}, average, 3);
  const auto steps = Plan(spec);
  EXPECT_EQ(Text(steps),
            "scale_float32 x2 *2, allreduce 10+512 float32 sum, "
            "scale_float32 x2 /3");
  EXPECT_EQ(MoveAt(steps, 0).rows[1].output, spec.spans[1].output);
  EXPECT_EQ(CallAt(steps, 1).others[0].input, spec.spans[1].output);
  EXPECT_EQ(MoveAt(steps, 2).rows[1].input, spec.spans[1].output);
}

TEST(GpuPlan, CallsAreCutWhereTheyHaveEnough) {
  const OperationSpec spec = Allreduce({5000}, kFloats);
  const auto steps = Plan(spec);
  EXPECT_EQ(CallsOf(steps),
            "allreduce 2048 float32 sum, allreduce 2048 float32 sum, "
            "allreduce 904 float32 sum, ");
  EXPECT_EQ(steps.size(), 3u);
  EXPECT_EQ(CallAt(steps, 2).input, Tensor(0) + 4096 * 4);
  EXPECT_EQ(CallAt(steps, 2).output, Tensor(1) + 4096 * 4);
  EXPECT_EQ(CallsOf(Plan(Allreduce({1000, 1000, 1000}, kFloats))),
            "allreduce 1000+1000 float32 sum, allreduce 1000 float32 sum, ");
}

// Some ranks may cast them, which takes the staging memory.
TEST(GpuPlan, HalfPrecisionsAreCutAsWhoCastsCutsThem) {
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
    OperationSpec cast = spec;
    cast.stored = DType::kFloat32;
    EXPECT_EQ(CallsOf(Plan(cast)), calls);
    EXPECT_EQ(CallsOf(Plan(Joined(spec))), calls);
  }
}

TEST(GpuPlan, BucketsAreCutBetweenTensors) {
  EXPECT_EQ(Text(Plan(Allreduce({500, 500, 24, 1, 509, 508, 2}, kFloats))),
            "copy_8 x3, allreduce 1024 float32 sum, copy_8 x3, "
            "copy_4 x3, allreduce 1024 float32 sum, copy_4 x3, "
            "copy_8 x1, allreduce 2 float32 sum, copy_8 x1");
}

// One is packed while the other is on its way.
TEST(GpuPlan, PiecesTakeTurnsInTheHalves) {
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

TEST(GpuPlan, ZerosForLargeTensorsHaveMemoryOfTheirOwn) {
  const GpuPlan plan =
      PlanPieces(Joined(Allreduce({10, 2000}, kFloats)), 0, 8192);
  const auto steps = StepsOf(plan);
  EXPECT_EQ(Text(steps), "copy_8 x2, allreduce 10+2000 float32 sum");
  EXPECT_EQ(MoveAt(steps, 0).rows[1].output, kSpareMemory);
  EXPECT_EQ(CallAt(steps, 1).others[0].input, kSpareMemory);
  EXPECT_EQ(plan.spare_bytes, 8000u);
  EXPECT_EQ(plan.pieces[0].uses, unsigned{kFirstHalf} | unsigned{kSpare});
  EXPECT_EQ(PlanPieces(Joined(Allreduce({1000}, kFloats)), 0, 8192).spare_bytes,
            0u);
}

// The end of a half that is no multiple of 64 bytes is not used.
TEST(GpuPlan, PiecesAreMultiplesOf64Bytes) {
  EXPECT_EQ(CallsOf(Plan(Allreduce({40}, Options(DType::kFloat16)), 0, 127)),
            "allreduce 32 float16 sum, allreduce 8 float16 sum, ");
}

// Each call of it is one tensor.
TEST(GpuPlan, MpiBroadcastsLargeTensorsAlone) {
  OperationSpec spec = Allreduce({100, 5000, 5000, 100}, kFloats);
  spec.kind = OpKind::kBroadcast;
  EXPECT_EQ(CallsOf(PlanIn(spec, 1, 8192, true)),
            "broadcast 100 uint8 from 0, broadcast 5000 uint8 from 0, "
            "broadcast 5000 uint8 from 0, broadcast 100 uint8 from 0, ");
}

TEST(GpuPlan, OneRankMakesNoCall) {
  const ReduceOptions average = Options(DType::kFloat32, ReduceOp::kAverage);
  EXPECT_EQ(Text(Plan(Allreduce({8, 7}, average, 1))), "copy_4 x2");
  EXPECT_EQ(Text(Plan(InPlace(Allreduce({8, 7}, average, 1)))), "");
  const ReduceOptions scaled = Options(DType::kInt8, ReduceOp::kSum, 2, 3);
  EXPECT_EQ(Text(Plan(Allreduce({9000}, scaled, 1))),
            "scale_int8 x1 *2, scale_int8 x1 *3");
  EXPECT_EQ(Text(Plan(Allreduce({8}, Options(DType::kBool), 1))),
            "scale_bool x1");
  OperationSpec alltoall = Spec(OpKind::kAlltoall, 1);
  alltoall.input = Tensor(0);
  alltoall.output = Tensor(1);
  alltoall.send = alltoall.receive = {24};
  EXPECT_EQ(Text(Plan(alltoall)), "copy_8 x1");
}

OperationSpec Broadcast(const std::vector<int64_t>& bytes, size_t root) {
  OperationSpec spec = Allreduce(bytes, kFloats);
  spec.kind = OpKind::kBroadcast;
  spec.root = root;
  return spec;
}

TEST(GpuPlan, TheRootPacksAndAllUnpack) {
  const std::string call = "broadcast 32 uint8 from 2, copy_8 x2";
  EXPECT_EQ(Text(Plan(Broadcast({8, 16}, 2), 2)), "copy_8 x2, " + call);
  EXPECT_EQ(Text(Plan(Broadcast({8, 16}, 2), 0)), call);
}

TEST(GpuPlan, OneTensorIsBroadcastFromItsInput) {
  const auto root = Plan(Broadcast({7}, 1), 1);
  EXPECT_EQ(Text(root), "broadcast 7 uint8 from 1");
  EXPECT_EQ(CallAt(root, 0).input, Tensor(0));
  EXPECT_EQ(CallAt(root, 0).output, Tensor(1));
  // What the others have is not looked at.
  const auto other = Plan(Broadcast({7}, 1), 0);
  EXPECT_EQ(Text(other), Text(root));
  EXPECT_EQ(CallAt(other, 0).input, Tensor(1));
}

TEST(GpuPlan, AlltoallIsOneGroup) {
  OperationSpec spec = Spec(OpKind::kAlltoall, 3);
  spec.input = Tensor(0);
  spec.output = Tensor(1);
  spec.send = {1, 0, 3};
  spec.receive = {1, 5, 0};
  const auto steps = Plan(spec);
  EXPECT_EQ(Text(steps), "alltoall >1 >0 >3 <1 <5 <0");
  EXPECT_EQ(CallAt(steps, 0).input, Tensor(0));
  EXPECT_EQ(CallAt(steps, 0).output, Tensor(1));
}

// `counts`: by rank and tensor. Tensor t of all ranks lies together.
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

TEST(GpuPlan, AllgatherOfOneTensorOfWhichAllHaveAsMuchIsNotPacked) {
  const auto steps =
      Plan(ByRank(OpKind::kAllgather, {{9000}, {9000}, {9000}}), 1);
  EXPECT_EQ(Text(steps), "allgather 9000 uint8");
  EXPECT_EQ(CallAt(steps, 0).input, Tensor(0));
  EXPECT_EQ(CallAt(steps, 0).output, Tensor(1));
}

TEST(GpuPlan, UnevenAllgatherIsPaddedToTheLongest) {
  const OperationSpec spec = ByRank(OpKind::kAllgather, {{8}, {24}, {0}});
  for (size_t me = 0; me < 3; ++me) {
    const auto steps = Plan(spec, me);
    const std::string rest = "allgather 24 uint8, copy_8 x2";
    EXPECT_EQ(Text(steps), me == 2 ? rest : "copy_8 x1, " + rest);
    const size_t call = me == 2 ? 0 : 1;
    EXPECT_EQ(CallAt(steps, call).input, kStaging + 24 * me);
    EXPECT_EQ(CallAt(steps, call).output, kStaging);
    EXPECT_EQ(MoveAt(steps, call + 1).rows[1].input, kStaging + 24);
    EXPECT_EQ(MoveAt(steps, call + 1).rows[1].output, Tensor(1) + 8);
  }
}

TEST(GpuPlan, AllgatherOfSeveralTensorsIsOneCall) {
  EXPECT_EQ(Text(Plan(ByRank(OpKind::kAllgather, {{8, 8}, {8, 8}}))),
            "copy_8 x2, allgather 16 uint8, copy_8 x4");
  const auto steps = Plan(ByRank(OpKind::kAllgather, {{8, 3}, {7, 3}}));
  EXPECT_EQ(Text(steps), "copy_1 x2, allgather 11 uint8, copy_1 x4");
  EXPECT_EQ(MoveAt(steps, 0).rows[1].input, Tensor(2));
  EXPECT_EQ(MoveAt(steps, 0).rows[1].output, kStaging + 8);
  EXPECT_EQ(MoveAt(steps, 2).rows[3].input, kStaging + 11 + 7);
  EXPECT_EQ(MoveAt(steps, 2).rows[3].output, Tensor(3) + 3);
}

TEST(GpuPlan, AllgatherIsCutWhereTheBlocksOfAllRanksFillTheMemory) {
  // 4096 / 2 bytes for each rank.
  const OperationSpec spec = ByRank(OpKind::kAllgather, {{5000}, {2056}});
  EXPECT_EQ(Text(Plan(spec, 0)),
            "copy_8 x1, allgather 2048 uint8, copy_8 x2, "
            "copy_8 x1, allgather 2048 uint8, copy_8 x2, "
            "copy_8 x1, allgather 904 uint8, copy_8 x1");
  EXPECT_EQ(CallsOf(Plan(spec, 1)), CallsOf(Plan(spec, 0)));
}

TEST(GpuPlan, NothingIsGatheredOrScatteredOfNothing) {
  EXPECT_EQ(Text(Plan(ByRank(OpKind::kAllgather, {{0}, {0}}))), "");
  EXPECT_EQ(Text(Plan(ByRank(OpKind::kReducescatter, {{0}, {0}}))), "");
}

TEST(GpuPlan, UnevenReducescatterIsPaddedToTheLongest) {
  OperationSpec spec = ByRank(OpKind::kReducescatter, {{4}, {2}, {2}});
  spec.reduce.op = ReduceOp::kAverage;
  for (size_t me = 0; me < 3; ++me) {
    const auto steps = Plan(spec, me);
    EXPECT_EQ(Text(steps),
              "copy_8 x3, reducescatter 4 float32 sum, "
              "scale_float32 x1 /3");
    EXPECT_EQ(MoveAt(steps, 0).rows[2].input, Tensor(0) + 6 * 4);
    EXPECT_EQ(MoveAt(steps, 0).rows[2].output, kStaging + 2 * 16);
    EXPECT_EQ(CallAt(steps, 1).input, kStaging);
    EXPECT_EQ(CallAt(steps, 1).output, kStaging + 16 * me);
    EXPECT_EQ(MoveAt(steps, 2).rows[0].input, kStaging + 16 * me);
    EXPECT_EQ(MoveAt(steps, 2).rows[0].output, Tensor(1));
  }
}

TEST(GpuPlan, CallsAreTheSameWhoeverHasJoinedAndOnAllRanks) {
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

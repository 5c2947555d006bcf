// The steps of Adasum on GPUs, as text: launches by their kernel and blocks,
// sends and receives by their bytes.
#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <memory>
#include <numeric>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "runtime/transport/gpu/adasum_plan.h"

namespace tf_hvd {
namespace {

// Addresses that nobody looks at: tensors lie far apart.
char* Tensor(int number) {
  return reinterpret_cast<char*>(uintptr_t{0x1000000} *
                                 static_cast<uintptr_t>(number + 1));
}
char* const kStaging = reinterpret_cast<char*>(uintptr_t{0x70000000});
constexpr size_t kRoom = size_t{1} << 20;

OperationSpec Adasum(const std::vector<int64_t>& counts, int ranks,
                     DType dtype = DType::kFloat32) {
  OperationSpec spec;
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  spec.ranks = MembersOf(std::move(all));
  spec.reduce = {dtype, ReduceOp::kAdasum, 1, 1, 1};
  for (size_t i = 0; i < counts.size(); ++i) {
    const int number = static_cast<int>(2 * i);
    spec.spans.push_back({Tensor(number), Tensor(number + 1), counts[i]});
  }
  return spec;
}

std::vector<GpuStep> Plan(const OperationSpec& spec, size_t me = 0,
                          size_t staging_bytes = kRoom) {
  GpuStaging staging;
  staging.memory = kStaging;
  staging.bytes = staging_bytes;
  std::vector<GpuStep> steps;
  for (const GpuPiece& piece : PlanOnGpu(spec, me, staging, {}).pieces) {
    if (!piece.pack.empty()) steps.emplace_back(piece.pack);
    steps.insert(steps.end(), piece.steps.begin(), piece.steps.end());
  }
  return steps;
}

std::vector<GpuCall> CallsOf(const std::vector<GpuStep>& steps) {
  std::vector<GpuCall> calls;
  for (const GpuStep& step : steps) {
    if (const auto* const call = std::get_if<GpuCall>(&step)) {
      calls.push_back(*call);
    }
  }
  return calls;
}

std::string Text(const GpuStep& step) {
  std::ostringstream text;
  if (const auto* const move = std::get_if<GpuMove>(&step)) {
    text << move->kernel.substr(7) << " x" << move->rows.size();  // "tf_hvd_"
    if (move->arguments.factor != 0 && move->arguments.factor != 1) {
      text << " *" << move->arguments.factor;
    }
  } else if (const auto* const adasum = std::get_if<GpuAdasum>(&step)) {
    text << adasum->kernel.substr(7) << " " << adasum->blocks;
  } else {
    const auto& call = std::get<GpuCall>(step);
    EXPECT_EQ(call.kind, OpKind::kAlltoall);
    text << "call";
    for (size_t i = 0; i < call.send.size(); ++i) {
      if (call.send[i] > 0) text << " " << call.send[i] << ">" << i;
      if (call.receive[i] > 0) text << " " << call.receive[i] << "<" << i;
    }
  }
  return text.str();
}

std::string Text(const std::vector<GpuStep>& steps) {
  std::string text;
  for (const GpuStep& step : steps) {
    text += (text.empty() ? "" : ", ") + Text(step);
  }
  return text;
}

TEST(GpuAdasumPlan, TwoRanksExchangeHalves) {
  EXPECT_EQ(Text(Plan(Adasum({9, 4}, 2), 0)),
            "copy_4 x2, call 28>1 24<1, dot_float32 1, fold_products 2, "
            "call 48>1 48<1, add_products 1, combine_float32 1, "
            "call 24>1 28<1, copy_4 x2");
  EXPECT_EQ(Text(Plan(Adasum({9, 4}, 2), 1)),
            "copy_4 x2, call 24>0 28<0, dot_float32 2, fold_products 2, "
            "call 48>0 48<0, add_products 1, combine_float32 2, "
            "call 28>0 24<0, copy_4 x2");
}

// The third lends its vector, makes empty calls, and gets the result.
TEST(GpuAdasumPlan, RanksBeyondThePowerOfTwoLend) {
  EXPECT_EQ(Text(Plan(Adasum({8}, 3, DType::kFloat64), 0)),
            "copy_8 x1, call 64<2, dot_float64 1, fold_products 1, "
            "combine_float64 1, call 32>1 32<1, dot_float64 1, "
            "fold_products 1, call 24>1 24<1, add_products 1, "
            "combine_float64 1, call 32>1 32<1, call 64>2, copy_8 x1");
  EXPECT_EQ(Text(Plan(Adasum({8}, 3, DType::kFloat64), 2)),
            "copy_8 x1, call 64>0, call, call, call, call 64<0, copy_8 x1");
}

TEST(GpuAdasumPlan, HalfPrecisionsAreCastToFloat32) {
  OperationSpec spec = Adasum({2}, 2, DType::kBfloat16);
  spec.reduce.prescale = 3;
  spec.reduce.postscale = 5;
  const std::string text = Text(Plan(spec));
  EXPECT_EQ(text.find("cast_bfloat16_float32 x1 *3, call 4>1 4<1, "), 0u);
  EXPECT_NE(text.find("cast_float32_bfloat16 x1 *5"), std::string::npos);
}

// Tensors of float32 that are compressed: on this rank alone, the calls are the
// same.
TEST(GpuAdasumPlan, CompressedTensorsAreCastTwice) {
  OperationSpec spec = Adasum({2, 6}, 2, DType::kFloat16);
  spec.reduce.prescale = 3;
  const auto plain = Plan(spec);
  spec.stored = DType::kFloat32;
  const auto casts = Plan(spec);
  EXPECT_EQ(Text(casts),
            "narrow_float16 x2, " + Text(plain) + ", widen_float16 x2");
  const auto& narrow = std::get<GpuMove>(casts[0]);
  const auto& load = std::get<GpuMove>(casts[1]);
  EXPECT_EQ(narrow.rows[1].input, spec.spans[1].input);
  EXPECT_EQ(narrow.rows[1].output, load.rows[1].input);
  EXPECT_EQ(load.rows[1].output, kStaging + 2 * 4);
  const auto& store = std::get<GpuMove>(casts[casts.size() - 2]);
  const auto& widen = std::get<GpuMove>(casts.back());
  EXPECT_EQ(store.rows[1].output, widen.rows[1].input);
  EXPECT_EQ(widen.rows[1].output, spec.spans[1].output);
}

TEST(GpuAdasumPlan, ARankThatHasJoinedStoresNothing) {
  OperationSpec spec = Adasum({9, 4}, 2);
  const auto calls = CallsOf(Plan(spec));
  for (Span& span : spec.spans) span.input = span.output = nullptr;
  const auto joined = Plan(spec);
  ASSERT_EQ(CallsOf(joined).size(), calls.size());
  const auto& load = std::get<GpuMove>(joined.front());
  EXPECT_EQ(load.rows[1].input, nullptr);
  EXPECT_EQ(load.rows[1].output, kStaging + 9 * 4);
  EXPECT_TRUE(std::holds_alternative<GpuCall>(joined.back()));
}

// With as many elements as one tile has, and one more.
TEST(GpuAdasumPlan, EachTileIsABlock) {
  const int64_t tile = GpuAdasum::kTile;
  const std::string text = Text(Plan(Adasum({2 * tile, 2 * tile + 2}, 2), 1));
  EXPECT_NE(text.find("dot_float32 3"), std::string::npos) << text;
  for (const GpuStep& step : Plan(Adasum({2 * tile, 2 * tile + 2}, 2), 1)) {
    const auto* const adasum = std::get_if<GpuAdasum>(&step);
    if (adasum == nullptr || adasum->rows.empty()) continue;
    // The second half: the last element of the first tensor is not in it.
    EXPECT_EQ(adasum->rows[0].count + adasum->rows[1].count, 2 * tile + 1);
    EXPECT_EQ(adasum->rows[1].last, 3);
  }
}

TEST(GpuAdasumPlan, NothingIsDoneForNoElements) {
  EXPECT_TRUE(Plan(Adasum({0, 0}, 3)).empty());
  EXPECT_TRUE(Plan(Adasum({}, 3)).empty());
}

TEST(GpuAdasumPlan, OneRankMakesNoCall) {
  EXPECT_EQ(Text(Plan(Adasum({9, 4}, 1))), "copy_4 x2");
}

// What is sent is received, by as many calls on all ranks.
TEST(GpuAdasumPlan, CallsMatch) {
  for (size_t ranks = 2; ranks <= 9; ++ranks) {
    for (const auto& counts : std::vector<std::vector<int64_t>>{
             {1}, {0, 5, 1000}, {3, 100'000, 2, 100'000}}) {
      const OperationSpec spec = Adasum(counts, static_cast<int>(ranks));
      std::vector<std::vector<GpuCall>> calls;
      for (size_t me = 0; me < ranks; ++me) {
        calls.push_back(CallsOf(Plan(spec, me)));
        ASSERT_EQ(calls[me].size(), calls[0].size()) << ranks << " ranks";
      }
      for (size_t i = 0; i < calls[0].size(); ++i) {
        for (size_t a = 0; a < ranks; ++a) {
          EXPECT_EQ(calls[a][i].send[a], 0);
          for (size_t b = 0; b < ranks; ++b) {
            EXPECT_EQ(calls[a][i].send[b], calls[b][i].receive[a]);
          }
        }
      }
    }
  }
}

// Vectors, products and what is exchanged lie apart.
TEST(GpuAdasumPlan, NothingLiesBeyondTheStagingMemory) {
  const std::vector<int64_t> counts = {20'000, 3, 30'000, 1, 0, 7};
  for (const size_t room : {size_t{300'000}, kRoom}) {
    for (size_t me = 0; me < 3; ++me) {
      for (const GpuStep& step : Plan(Adasum(counts, 3), me, room)) {
        const auto* const adasum = std::get_if<GpuAdasum>(&step);
        if (adasum == nullptr) continue;
        const AdasumArguments& to = adasum->arguments;
        for (const AdasumRow& row : adasum->rows) {
          EXPECT_LE(static_cast<const char*>(row.a) + 4 * row.count,
                    reinterpret_cast<const char*>(to.products));
        }
        EXPECT_LE(to.products + to.row_count, to.incoming);
        EXPECT_LE(to.incoming + to.row_count, to.partials);
        if (adasum->rows.empty()) continue;
        EXPECT_LE(
            reinterpret_cast<char*>(to.partials + adasum->rows.back().last),
            kStaging + room);
      }
    }
  }
}

TEST(GpuAdasumPlan, NcclCanDoWhatFits) {
  for (const DType dtype :
       {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
    const size_t element = dtype == DType::kFloat64 ? 8 : 4;
    // Two vectors of 1024; products of one tensor, its partner's, one tile's.
    const size_t needed = 2 * 1024 * element + 3 * 64;
    EXPECT_TRUE(NcclCanDo(Adasum({1024, 1024}, 2, dtype), needed));
    EXPECT_FALSE(NcclCanDo(Adasum({1, 1024}, 2, dtype), needed - 1));
  }
  OperationSpec spec = Adasum({8}, 2, DType::kInt32);
  EXPECT_FALSE(NcclCanDo(spec, kRoom));
  spec.reduce.dtype = DType::kFloat32;
  spec.kind = OpKind::kReducescatter;
  EXPECT_FALSE(NcclCanDo(spec, kRoom));
}

}  // namespace
}  // namespace tf_hvd

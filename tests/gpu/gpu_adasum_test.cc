// Adasum of tensors on software GPUs, against its definition and against the
// CPU's, on groups of tensors that several blocks work on.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/adasum_reference.h"
#include "tests/gpu/gpu_ranks.h"

namespace tf_hvd {
namespace {

constexpr DType kTypes[] = {DType::kFloat16, DType::kBfloat16, DType::kFloat32,
                            DType::kFloat64};
constexpr size_t kNobody = 99;

// By place and tensor.
using Inputs = std::vector<Tensors>;

struct Case {
  ReduceOptions options;
  std::vector<size_t> counts;  // of each tensor
  Inputs inputs;
  size_t joined = kNobody;  // this place has nothing to give
};

ReduceOptions Adasum(DType dtype, double prescale = 1, double postscale = 1) {
  return {dtype, ReduceOp::kAdasum, prescale, postscale, 1};
}

// What is to come out, by tensor.
Tensors Expected(const Case& one) {
  Tensors expected;
  for (size_t t = 0; t < one.counts.size(); ++t) {
    std::vector<const void*> inputs;
    for (size_t place = 0; place < one.inputs.size(); ++place) {
      inputs.push_back(place == one.joined ? nullptr
                                           : one.inputs[place][t].data());
    }
    expected.push_back(AdasumBytes(one.options, inputs, one.counts[t]));
  }
  return expected;
}

GpuRank::Call CallOf(const Case& one, size_t place, const Tensors& expected) {
  GpuRank::Call call;
  std::vector<int> all;
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    all.push_back(static_cast<int>(i));
  }
  call.what = "rank " + std::to_string(place);
  call.spec.reduce = one.options;
  call.spec.ranks = MembersOf(std::move(all));
  call.joined = place == one.joined;
  call.expected = expected;
  if (!call.joined) call.inputs = one.inputs[place];
  for (const auto& input : call.inputs) call.outputs.push_back(input.size());
  call.point = [counts = one.counts](const auto& inputs, const auto& outputs,
                                     OperationSpec* spec) {
    for (size_t t = 0; t < counts.size(); ++t) {
      spec->spans.push_back({inputs.empty() ? nullptr : inputs[t],
                             outputs.empty() ? nullptr : outputs[t],
                             static_cast<int64_t>(counts[t])});
    }
  };
  return call;
}

// Calls of NCCL that all ranks together have made.
size_t CallsOf(const Case& one, const Tensors& expected, bool with_nccl = true,
               size_t staging_bytes = size_t{1} << 20, uint64_t seed = 3) {
  GpuOptions options;
  options.staging_bytes = staging_bytes;
  GpuRanks job(static_cast<int>(one.inputs.size()), seed,
               with_nccl ? GpuWay::kNccl : GpuWay::kNone, options);
  std::mt19937_64 random(seed);
  for (size_t place = 0; place < one.inputs.size(); ++place) {
    job.all[place]->Make(CallOf(one, place, expected));
  }
  job.Finish(&random);
  job.Close();
  for (const std::string& fault : job.gpu.Faults()) ADD_FAILURE() << fault;
  return job.nccl.launches();
}

// Tensors of which Adasum is exact.
Case Exact(DType dtype, size_t ranks, const std::vector<size_t>& counts) {
  std::mt19937_64 random(ranks);
  Case one;
  one.options = Adasum(dtype, 2, 0.5);
  one.counts = counts;
  one.inputs.resize(ranks);
  for (const size_t count : counts) {
    std::vector<int> base(count);
    for (int& value : base) value = static_cast<int>(random() % 4);
    for (size_t place = 0; place < ranks; ++place) {
      one.inputs[place].push_back(
          AdasumNumbers(dtype, place, ranks, base, &random));
    }
  }
  return one;
}

// A tensor of several tiles, and of which halves of halves are; one whose parts
// are empty on some ranks.
const std::vector<size_t> kCounts = {1, 40'000, 0, 37, 8192, 3};

TEST(GpuAdasum, HasTheBitsOfTheCpuAndOfTheDefinition) {
  for (const size_t ranks : {2, 3, 4, 5, 8}) {
    for (const DType dtype : kTypes) {
      SCOPED_TRACE(std::to_string(ranks) + " ranks, " + NameOf(dtype));
      const Case one = Exact(dtype, ranks, kCounts);
      const Tensors expected = Expected(one);
      EXPECT_GT(CallsOf(one, expected), 0u);
      EXPECT_EQ(CallsOf(one, expected, /*with_nccl=*/false), 0u);
    }
  }
}

// Two vectors on each rank, and what they take: 8192 and 2048 floats do not fit
// together.
TEST(GpuAdasum, GroupsAreCutBetweenTensors) {
  const Case one = Exact(DType::kFloat32, 4, {8192, 100, 2048, 8000});
  const size_t room = 2 * 4 * 8400 + 1024;
  const size_t calls = CallsOf(one, Expected(one), true, room);
  const size_t at_once = CallsOf(one, Expected(one));
  EXPECT_EQ(calls, 3 * at_once);
}

TEST(GpuAdasum, TensorsThatDoNotFitGoThroughTheHostsMemory) {
  const Case one = Exact(DType::kFloat32, 2, {8192, 100});
  EXPECT_EQ(CallsOf(one, Expected(one), true, 2 * 4 * 8192), 0u);
}

TEST(GpuAdasum, ARankThatHasJoinedGivesZeros) {
  for (const size_t ranks : {2, 3, 5}) {
    for (size_t joined = 0; joined < ranks; ++joined) {
      SCOPED_TRACE(std::to_string(joined) + " of " + std::to_string(ranks));
      Case one = Exact(DType::kBfloat16, ranks, {9000, 5});
      one.joined = joined;
      EXPECT_GT(CallsOf(one, Expected(one)), 0u);
    }
  }
}

// All ranks' results are `expected`, to the bit: found by the first run, for
// nobody can foretell the order of its sums.
template <typename T>
void CheckRandom(size_t ranks, DType dtype, double tolerance) {
  std::mt19937_64 random(ranks);
  Case one;
  one.options = Adasum(dtype);
  one.counts = {20'000};
  for (size_t place = 0; place < ranks; ++place) {
    std::vector<char> input(one.counts[0] * sizeof(T));
    for (size_t i = 0; i < one.counts[0]; ++i) {
      const T value = static_cast<T>(
          static_cast<double>(random()) / 18446744073709551616.0 - 0.4);
      std::memcpy(input.data() + i * sizeof(T), &value, sizeof(value));
    }
    one.inputs.push_back({std::move(input)});
  }
  const Tensors definition = Expected(one);
  Tensors first;
  for (const uint64_t seed : {1, 2}) {
    GpuRanks job(static_cast<int>(ranks), seed);
    std::mt19937_64 order(seed);
    Tensors got;
    for (size_t place = 0; place < ranks; ++place) {
      job.all[place]->KeepResults(&got);
      job.all[place]->Make(CallOf(one, place, {}));
    }
    job.Finish(&order);
    job.Close();
    ASSERT_EQ(got.size(), ranks);
    if (first.empty()) first = got;
    for (const auto& result : got) EXPECT_TRUE(result == first[0]);
  }
  for (size_t i = 0; i < one.counts[0]; ++i) {
    T value;
    T expected;
    std::memcpy(&value, first[0].data() + i * sizeof(T), sizeof(T));
    std::memcpy(&expected, definition[0].data() + i * sizeof(T), sizeof(T));
    ASSERT_NEAR(value, expected, tolerance) << "element " << i;
  }
}

TEST(GpuAdasum, AllRanksAndAllRunsHaveTheSameBits) {
  for (const size_t ranks : {2, 3, 4, 5, 8}) {
    SCOPED_TRACE(ranks);
    CheckRandom<float>(ranks, DType::kFloat32, 4e-7);
    CheckRandom<double>(ranks, DType::kFloat64, 1e-12);
  }
}

// What is not a number spreads within its tensor alone; as on the CPU.
TEST(GpuAdasum, NanStaysInItsTensor) {
  Case one = Exact(DType::kFloat32, 4, {5, 9});
  const float nan = std::nanf("");
  std::memcpy(one.inputs[2][0].data(), &nan, sizeof(nan));
  GpuRanks job(4, 1);
  std::mt19937_64 random(1);
  Tensors got;
  for (size_t place = 0; place < 4; ++place) {
    job.all[place]->KeepResults(&got);
    job.all[place]->Make(CallOf(one, place, {}));
  }
  job.Finish(&random);
  job.Close();
  ASSERT_EQ(got.size(), 8u);
  const Tensors expected = Expected(one);
  for (size_t i = 0; i < got.size(); i += 2) {
    float first = 0;
    std::memcpy(&first, got[i].data(), sizeof(first));
    EXPECT_TRUE(std::isnan(first));
    EXPECT_TRUE(got[i + 1] == expected[1]);
  }
}

}  // namespace
}  // namespace tf_hvd

// Adasum of tensors on software GPUs has the bits of the CPU's, whatever lies
// between the GPUs.
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "compute/buffer_ops.h"
#include "tests/gpu/gpu_ranks.h"

namespace tf_hvd {
namespace {

constexpr DType kTypes[] = {DType::kFloat16, DType::kBfloat16, DType::kFloat32,
                            DType::kFloat64};
constexpr size_t kNobody = 99;
// More than one piece of a rank's work; one whose parts are empty on some.
const std::vector<size_t> kCounts = {1, 40'000, 0, 37, 8192, 3};

struct Case {
  ReduceOptions options;
  std::vector<Tensors> inputs;  // by place
  size_t joined = kNobody;      // this place has nothing to give
};

// Numbers whose sums and products round.
Case Random(DType dtype, size_t ranks) {
  std::mt19937_64 random(ranks);
  Case one;
  one.options = {dtype, ReduceOp::kAdasum, 2, 0.5, 1};
  one.inputs.resize(ranks);
  for (Tensors& tensors : one.inputs) {
    for (const size_t count : kCounts) {
      std::vector<double> numbers(count);
      for (double& number : numbers) {
        number = static_cast<double>(random() % 9001) / 7.0 - 600.0;
      }
      const std::vector<float> floats(numbers.begin(), numbers.end());
      const void* const values = dtype == DType::kFloat64
                                     ? static_cast<const void*>(numbers.data())
                                     : floats.data();
      std::vector<char>& bytes = tensors.emplace_back(count * SizeOf(dtype));
      StoreAccumulator(dtype, bytes.data(), values, static_cast<int64_t>(count),
                       1.0);
    }
  }
  return one;
}

OperationSpec SpecOf(const Case& one) {
  OperationSpec spec;
  std::vector<int> all;
  for (size_t i = 0; i < one.inputs.size(); ++i) {
    all.push_back(static_cast<int>(i));
  }
  spec.reduce = one.options;
  spec.ranks = MembersOf(std::move(all));
  return spec;
}

void Point(const std::vector<const char*>& inputs,
           const std::vector<char*>& outputs, OperationSpec* spec) {
  for (size_t t = 0; t < kCounts.size(); ++t) {
    spec->spans.push_back({inputs.empty() ? nullptr : inputs[t],
                           outputs.empty() ? nullptr : outputs[t],
                           static_cast<int64_t>(kCounts[t])});
  }
}

// What each rank gets of tensors in the host's memory.
std::vector<Tensors> OnTheCpu(const Case& one) {
  const size_t ranks = one.inputs.size();
  const auto mail = std::make_shared<MailRoom>(static_cast<int>(ranks));
  std::deque<LoopbackPointToPoint> links;
  std::deque<P2PBackend> backends;
  std::vector<std::unique_ptr<Operation>> operations(ranks);
  std::vector<Tensors> results = one.inputs;
  for (size_t place = 0; place < ranks; ++place) {
    const int rank = static_cast<int>(place);
    backends.emplace_back(&links.emplace_back(mail, rank), rank);
    std::vector<const char*> inputs;
    std::vector<char*> outputs;
    for (size_t t = 0; place != one.joined && t < kCounts.size(); ++t) {
      inputs.push_back(one.inputs[place][t].data());
      outputs.push_back(results[place][t].data());
    }
    OperationSpec spec = SpecOf(one);
    Point(inputs, outputs, &spec);
    EXPECT_TRUE(backends.back().Make(spec, &operations[place]).ok());
  }
  for (size_t ended = 0; ended < ranks;) {
    for (auto& operation : operations) {
      Poll poll;
      if (operation == nullptr) continue;
      EXPECT_TRUE(operation->Progress(100'000, &poll).ok());
      if (!poll.done) continue;
      operation.reset();
      ++ended;
    }
  }
  return results;
}

void CheckOnGpus(const Case& one, GpuWay way) {
  const std::vector<Tensors> expected = OnTheCpu(one);
  GpuRanks job(static_cast<int>(one.inputs.size()), /*seed=*/3, way);
  std::mt19937_64 random(3);
  for (size_t place = 0; place < one.inputs.size(); ++place) {
    GpuRank::Call call;
    call.what = "rank " + std::to_string(place);
    call.spec = SpecOf(one);
    call.joined = place == one.joined;
    call.expected = expected[place];
    if (!call.joined) call.inputs = one.inputs[place];
    for (const auto& input : call.inputs) call.outputs.push_back(input.size());
    call.point = Point;
    job.all[place]->Make(std::move(call));
  }
  job.Finish(&random);
  job.Close();
  for (const std::string& fault : job.gpu.Faults()) ADD_FAILURE() << fault;
  EXPECT_EQ(job.nccl.launches(), 0u);
}

TEST(GpuAdasum, HasTheBitsOfTheCpu) {
  for (const size_t ranks : {2, 3, 4, 5}) {
    for (const DType dtype : kTypes) {
      for (const GpuWay way : {GpuWay::kNccl, GpuWay::kMpi, GpuWay::kNone}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + NameOf(dtype));
        CheckOnGpus(Random(dtype, ranks), way);
      }
    }
  }
}

TEST(GpuAdasum, ARankThatHasJoinedGivesZeros) {
  for (size_t joined = 0; joined < 3; ++joined) {
    SCOPED_TRACE(joined);
    Case one = Random(DType::kBfloat16, 3);
    one.joined = joined;
    CheckOnGpus(one, GpuWay::kNccl);
  }
}

}  // namespace
}  // namespace tf_hvd

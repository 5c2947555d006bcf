// A training step must not call functions that wait for a device or the driver,
// or that allocate.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/gpu/counted_calls.h"
#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_nccl.h"
#include "tests/gpu/training_step.h"

namespace tf_hvd {
namespace {

// Runs the job and returns its calls.
std::vector<StepCalls> CallsOf(const StepPlan& plan, bool with_nccl,
                               uint64_t seed) {
  SoftwareGpu gpu(plan.ranks, seed);
  SoftwareNccl nccl(&gpu);
  std::vector<StepCalls> calls;
  const Status status =
      CountSteps(plan, SoftwareGpu::Cuda(),
                 with_nccl ? SoftwareNccl::Api() : nullptr, &calls);
  EXPECT_TRUE(status.ok()) << status.message();
  for (const std::string& fault : gpu.Faults()) ADD_FAILURE() << fault;
  for (const StepCalls& of_rank : calls) {
    // The counters work: there are some calls before the first step.
    EXPECT_GT(of_rank.warmup.synchronizations(), 3);
    EXPECT_GT(of_rank.warmup.allocations(), 3);
    EXPECT_GE(of_rank.steps.of("cuEventQuery"), plan.steps);
  }
  return calls;
}

struct Way {
  int ranks;
  bool with_nccl;
};

class GpuCalls : public ::testing::TestWithParam<Way> {};

// Memory for everything that may be in progress at once is allocated at the
// start: later steps may have more or less in progress than the first.
TEST_P(GpuCalls, AStepWaitsForNothingAndAllocatesNothing) {
  StepPlan plan;
  plan.ranks = GetParam().ranks;
  plan.warmup = 1;
  for (const StepCalls& of_rank : CallsOf(plan, GetParam().with_nccl, 21)) {
    EXPECT_EQ(of_rank.steps.Synchronizations(), "");
    EXPECT_EQ(of_rank.steps.synchronizations(), 0);
    EXPECT_EQ(of_rank.steps.allocations(), 0);
    // Kernels read the lists of their tensors from the memory that the host
    // writes.
    if (GetParam().with_nccl) {
      EXPECT_EQ(of_rank.steps.of("cuMemcpyAsync"), 0);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , GpuCalls,
    ::testing::Values(Way{1, true}, Way{2, true}, Way{4, true}, Way{2, false},
                      Way{3, false}),
    [](const ::testing::TestParamInfo<Way>& way) {
      return std::to_string(way.param.ranks) +
             (way.param.with_nccl ? "RanksByNccl" : "RanksThroughPinnedMemory");
    });

// As many as the plan of a step has: the same on all ranks, independent of
// timing.
TEST(GpuCallsOfNccl, AreThoseOfThePlan) {
  StepPlan plan;
  plan.ranks = 3;
  const auto calls = CallsOf(plan, true, 22);
  for (const StepCalls& of_rank : calls) {
    EXPECT_EQ(of_rank.steps.nccl_calls(), calls[0].steps.nccl_calls());
    EXPECT_EQ(of_rank.steps.nccl_calls() % plan.steps, 0);
    EXPECT_EQ(of_rank.steps.of("cuLaunchKernel"),
              calls[0].steps.of("cuLaunchKernel"));
    EXPECT_GE(of_rank.steps.of("cuLaunchKernel"), 6 * plan.steps);
  }
}

}  // namespace
}  // namespace tf_hvd

// Simulated jobs, compared with independent results.
#include "benchmarks/scale/job.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "tests/runtime/transport/meter.h"

namespace tf_hvd::scale {
namespace {

JobSettings Job(int nodes, int ranks_per_node, Schedule schedule) {
  JobSettings job;
  job.nodes = nodes;
  job.ranks_per_node = ranks_per_node;
  job.schedule = schedule;
  job.training.compute_ns = 1e6;
  job.training.update_ns = 1000;
  job.training.steps = 3;
  job.training.warmup = 0;
  return job;
}

// One allreduce by ranks that are threads, with real memory and numbers.
Counts CountReal(int nodes, int ranks_per_node, int64_t elements) {
  const std::vector<int> sizes(static_cast<size_t>(nodes), ranks_per_node);
  return SentBy(
      NodesOf(sizes), [&](const Cluster& cluster, Collectives* data, int) {
        std::vector<float> values(static_cast<size_t>(elements), 1.0f);
        const Status status = data->Allreduce(
            cluster.all, {{values.data(), values.data(), elements}},
            Options(DType::kFloat32, ReduceOp::kSum));
        EXPECT_EQ(values.back(), static_cast<float>(cluster.size()));
        return status;
      });
}

using Layout = std::tuple<int, int, int64_t>;

class CountsTest : public testing::TestWithParam<Layout> {};

TEST_P(CountsTest, MessagesAndBytesAreThoseOfRealRanks) {
  const auto [nodes, ranks_per_node, elements] = GetParam();
  JobSettings job = Job(nodes, ranks_per_node, Schedule::kHost);
  job.training.gradients = {{"g", {elements}, 0}};
  const JobResult result = RunJob(job);
  const Counts real = CountReal(nodes, ranks_per_node, elements);
  EXPECT_EQ(result.data_messages, 3 * real.messages);
  EXPECT_EQ(result.data_bytes, 3 * static_cast<double>(real.bytes));
  EXPECT_GT(real.messages, 0u);
}

INSTANTIATE_TEST_SUITE_P(Layouts, CountsTest,
                         testing::Values(Layout{2, 1, 3}, Layout{2, 2, 100},
                                         Layout{4, 1, 100'001},
                                         Layout{2, 2, 3'000'017},
                                         Layout{4, 4, 1'000'003},
                                         Layout{16, 1, 500'000}));

TEST(JobTest, SingleRankComputesAndUpdates) {
  for (const Schedule schedule :
       {Schedule::kHost, Schedule::kGpu, Schedule::kHorovod}) {
    JobSettings job = Job(1, 1, schedule);
    job.horovod.cycle_ns = 1000;
    job.training.gradients = {{"g", {1000}, 0}};
    for (const double step : RunJob(job).steps_ns) {
      EXPECT_EQ(step, 1e6 + 1000);
    }
  }
}

TEST(JobTest, GradientsComputedLastAreSummedAfterTheComputation) {
  JobSettings job = Job(4, 4, Schedule::kGpu);
  job.training.gradients = {{"g", {1'000'000}, 1e6}};
  VirtualTime time;
  std::vector<size_t> nodes;
  for (size_t rank = 0; rank < 16; ++rank) nodes.push_back(rank / 4);
  const double sum = Network(&time, job.network, nodes).RingNs(4e6);
  for (const double step : RunJob(job).steps_ns) {
    EXPECT_GT(step, 1e6 + sum);
    EXPECT_LT(step, 1e6 + sum + 100'000);  // for agreement and update
  }
}

TEST(JobTest, HorovodWaitsForItsCycleAndFusesUpToItsThreshold) {
  JobSettings job = Job(2, 1, Schedule::kHorovod);
  job.training.compute_ns = 1000;
  job.horovod.cycle_ns = 5e6;
  for (int i = 0; i < 8; ++i) {
    job.training.gradients.push_back({"g" + std::to_string(i), {1000}, 0});
  }
  job.pack.launch_ns = 0;
  job.pack.byte_ns = 0;
  const auto sums = [&job](double fusion_bytes) {
    job.horovod.fusion_bytes = fusion_bytes;
    const std::vector<double> steps = RunJob(job).steps_ns;
    return *std::max_element(steps.begin(), steps.end());
  };
  const double fused = sums(1e9), apart = sums(4000);
  EXPECT_GT(fused, 4e6);  // a step ends soon after a cycle
  EXPECT_LT(fused, 6e6);
  VirtualTime time;
  const Network network(&time, job.network, {0, 1});
  EXPECT_NEAR(apart - fused, 8 * network.RingNs(4000) - network.RingNs(32000),
              2000);
}

TEST(JobTest, SlowestRankDeterminesTheStep) {
  JobSettings job = Job(8, 1, Schedule::kGpu);
  job.training.steps = 50;
  job.training.jitter = {1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.5};
  job.training.gradients = {{"g", {10}, 0}};
  int slow = 0;
  for (const double step : RunJob(job).steps_ns) slow += step > 1.4e6 ? 1 : 0;
  // At least one of eight ranks, each with a probability of 1/8, is slow: 66 %.
  EXPECT_GT(slow, 20);
  EXPECT_LT(slow, 45);
  job.training.jitter_scale = 0;
  for (const double step : RunJob(job).steps_ns) EXPECT_LT(step, 1.1e6);
}

TEST(JobTest, EqualJobsHaveEqualResults) {
  for (const Schedule schedule : {Schedule::kHost, Schedule::kGpu}) {
    JobSettings job = Job(3, 2, schedule);
    job.training.jitter = {0.9, 1.0, 1.1};
    job.training.gradients = {{"a", {70'000, 5}, 1e5}, {"b", {300'000}, 9e5}};
    const JobResult first = RunJob(job), again = RunJob(job);
    EXPECT_EQ(first.steps_ns, again.steps_ns);
    EXPECT_EQ(first.events, again.events);
    ++job.training.seed;
    EXPECT_NE(first.steps_ns, RunJob(job).steps_ns);
  }
}

// Each node's leader sends one message to its parent, and receives one.
TEST(JobTest, AgreementSendsFewMessagesPerNode) {
  JobSettings job = Job(100, 2, Schedule::kGpu);
  job.training.gradients = {{"barrier", {}, 0}};
  const JobResult result = RunJob(job);
  EXPECT_EQ(result.agreement_messages, 3u * 2 * 99);
  EXPECT_EQ(result.data_messages, 0u);
}

}  // namespace
}  // namespace tf_hvd::scale

// Invalid texts of jobs, and the errors for them.
#include "benchmarks/scale/job_text.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

namespace tf_hvd::scale {
namespace {

// The error of ReadJob; empty if the text is valid.
std::string FaultOf(const std::string& text, JobSettings* job) {
  std::istringstream input(text);
  std::string error;
  if (ReadJob(input, job, &error)) return "";
  EXPECT_NE(error, "");
  return error;
}

std::string FaultOf(const std::string& text) {
  JobSettings job;
  return FaultOf(text, &job);
}

TEST(JobTextTest, SettingsGradientsAndTimesAreRead) {
  JobSettings job;
  EXPECT_EQ(FaultOf("nodes 3\n\nschedule horovod\n  byte_ns 1e-05  \n"
                    "gradients a 12.5 7 8\ngradients barrier 0\n"
                    "jitter 0.9 1.1\r\nseed 18446744073709551615",
                    &job),
            "");
  EXPECT_EQ(job.nodes, 3);
  EXPECT_EQ(job.schedule, Schedule::kHorovod);
  EXPECT_EQ(job.network.byte_ns, 1e-5);
  ASSERT_EQ(job.training.gradients.size(), 2u);
  EXPECT_EQ(job.training.gradients[0].ready_ns, 12.5);
  EXPECT_EQ(job.training.gradients[0].tensors, (std::vector<int64_t>{7, 8}));
  EXPECT_TRUE(job.training.gradients[1].tensors.empty());
  EXPECT_EQ(job.training.jitter, (std::vector<double>{0.9, 1.1}));
  EXPECT_EQ(job.training.seed, ~uint64_t{0});
}

TEST(JobTextTest, ErrorNamesTheLineAndValidValues) {
  EXPECT_EQ(FaultOf("steps 2\n\nnodes 2x"),
            "line 3, 'nodes 2x': bad value, it takes a whole number from 1 to "
            "100000");
  EXPECT_EQ(FaultOf("node 2"), "line 1, 'node 2': unknown setting");
  EXPECT_EQ(FaultOf("schedule mpi"),
            "line 1, 'schedule mpi': bad value, it takes one of gpu horovod "
            "host");
  EXPECT_EQ(FaultOf("steps 2\nsteps 3"), "line 2, 'steps 3': set twice");
}

class BadLineTest : public testing::TestWithParam<const char*> {};

TEST_P(BadLineTest, IsRefused) {
  EXPECT_NE(FaultOf(GetParam()).find("bad value"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(
    Lines, BadLineTest,
    testing::Values("nodes 0", "nodes -1", "nodes 2 3", "nodes 2.7", "nodes",
                    "nodes 99999999999999999999", "ranks_per_node 0", "steps 0",
                    "warmup -5", "byte_ns nan", "byte_ns inf", "byte_ns 1e30",
                    "byte_ns -1", "latency_ns 1e400", "cycle_ns 0", "turn_ns 0",
                    "jitter_scale -1", "jitter_delay 1.5", "jitter",
                    "jitter 1 -1", "jitter 1 nan", "seed -1", "gradients",
                    "gradients a", "gradients a -1 5", "gradients a 0 -5",
                    "gradients a 0 0", "gradients a 0 5 x",
                    "gradients a 0 5\ngradients a 0 6"));

TEST(JobTextTest, SettingsThatContradictEachOtherAreRefused) {
  EXPECT_EQ(FaultOf("nodes 50000\nranks_per_node 4"), "more than 100000 ranks");
  EXPECT_EQ(FaultOf("jitter 0.5 1.5\njitter_scale 2"), "");
  EXPECT_EQ(FaultOf("jitter 0.5 1.5\njitter_scale 2.1"),
            "jitter_scale is too large: steps would have negative times");
}

TEST(JobTextTest, MessageCountsFitTheSchedule) {
  JobSettings job;
  JobResult result;
  result.steps_ns = {1e6, 2e15};
  result.agreement_messages = 4;
  result.events = 9;
  const std::string steps = "{\"steps_ns\": [1000000, 2000000000000000], ";
  job.schedule = Schedule::kHorovod;
  EXPECT_EQ(ToJson(job, result), steps + "\"events\": 9}");
  job.schedule = Schedule::kGpu;
  EXPECT_EQ(ToJson(job, result),
            steps + "\"agreement_messages\": 4, \"agreement_bytes\": 0, " +
                "\"events\": 9}");
  job.schedule = Schedule::kHost;
  EXPECT_EQ(ToJson(job, result),
            steps + "\"agreement_messages\": 4, \"agreement_bytes\": 0, " +
                "\"data_messages\": 0, \"data_bytes\": 0, \"events\": 9}");
}

}  // namespace
}  // namespace tf_hvd::scale

#include "runtime/execution/fusion_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace tf_hvd {
namespace {

using Plan = std::vector<std::vector<size_t>>;

// An allreduce of `floats` float32.
Task Allreduce(int64_t floats) {
  Task run;
  run.request.tensors.push_back({DType::kFloat32, {floats}});
  return run;
}

Task Kind(OpKind kind) {
  Task run = Allreduce(1);
  run.request.kind = kind;
  return run;
}

std::vector<Task> Runs(const std::vector<int64_t>& floats) {
  std::vector<Task> runs;
  for (const int64_t count : floats) runs.push_back(Allreduce(count));
  return runs;
}

TEST(FusionPlan, Empty) { EXPECT_EQ(PlanFusion({}, 100), Plan()); }

TEST(FusionPlan, UpToTheThresholdAndNotBeyond) {
  EXPECT_EQ(PlanFusion(Runs({1, 2, 1}), 16), (Plan{{0, 1, 2}}));
  EXPECT_EQ(PlanFusion(Runs({1, 2, 1}), 15), (Plan{{0, 1}, {2}}));
  EXPECT_EQ(PlanFusion(Runs({1, 1, 1, 1, 1}), 8), (Plan{{0, 1}, {2, 3}, {4}}));
}

TEST(FusionPlan, LargerThanTheThresholdRunsAlone) {
  EXPECT_EQ(PlanFusion(Runs({100, 1, 1}), 16), (Plan{{0}, {1, 2}}));
}

TEST(FusionPlan, ZeroMeansNever) {
  EXPECT_EQ(PlanFusion(Runs({1, 1}), 0), (Plan{{0}, {1}}));
  EXPECT_EQ(PlanFusion(Runs({0, 0}), 0), (Plan{{0}, {1}}));
}

TEST(FusionPlan, LooksPastWhatDoesNotMatch) {
  std::vector<Task> batch = Runs({1, 1, 1, 1});
  batch[1].request.tensors[0].dtype = DType::kInt32;
  EXPECT_EQ(PlanFusion(batch, 100), (Plan{{0, 2, 3}, {1}}));
  batch[3].request.tensors[0].dtype = DType::kInt32;
  EXPECT_EQ(PlanFusion(batch, 100), (Plan{{0, 2}, {1, 3}}));
}

TEST(FusionPlan, OtherKindsAndErrorsStandAlone) {
  std::vector<Task> batch = Runs({1, 1});
  for (const OpKind kind :
       {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kJoin, OpKind::kBarrier,
        OpKind::kAddSet, OpKind::kRemoveSet}) {
    batch.push_back(Kind(kind));
    batch.push_back(Kind(kind));
  }
  batch[1].error = "mismatch";
  Plan expected;
  for (size_t i = 0; i < batch.size(); ++i) expected.push_back({i});
  EXPECT_EQ(PlanFusion(batch, 1000), expected);
}

TEST(FusionPlan, WhatMustBeEqual) {
  const auto apart = [](const char* what, void (*change)(Task*)) {
    std::vector<Task> batch = Runs({1, 1});
    change(&batch[1]);
    EXPECT_EQ(PlanFusion(batch, 1000), (Plan{{0}, {1}})) << what;
  };
  apart("set", [](Task* run) { run->set = 3; });
  apart("type",
        [](Task* run) { run->request.tensors[0].dtype = DType::kFloat64; });
  apart("operation",
        [](Task* run) { run->request.reduce_op = ReduceOp::kMax; });
  apart("prescale", [](Task* run) { run->request.prescale = 2; });
  apart("postscale", [](Task* run) { run->request.postscale = 2; });
  apart("device", [](Task* run) { run->request.device = DeviceKind::kGpu; });
}

TEST(FusionPlan, GroupsCountAllTheirTensors) {
  std::vector<Task> batch = Runs({1, 1});
  batch[0].request.tensors.push_back({DType::kFloat32, {3}});
  EXPECT_EQ(PlanFusion(batch, 20), (Plan{{0, 1}}));
  EXPECT_EQ(PlanFusion(batch, 19), (Plan{{0}, {1}}));
}

// A group of several types cannot be one reduction: it must not draw others in.
TEST(FusionPlan, GroupsOfMixedTypesStandAlone) {
  std::vector<Task> batch = Runs({1, 1, 1});
  batch[1].request.tensors.push_back({DType::kInt32, {3}});
  EXPECT_EQ(PlanFusion(batch, 1000), (Plan{{0, 2}, {1}}));
}

TEST(FusionPlan, EachIndexOnceAndWithinTheThreshold) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<Task> batch;
    for (size_t n = random() % 30; n > 0; --n) {
      Task run = Allreduce(static_cast<int64_t>(random() % 20));
      run.set = static_cast<int32_t>(random() % 2);
      if (random() % 3 == 0) run.request.kind = OpKind::kAllgather;
      if (random() % 5 == 0) run.error = "no";
      batch.push_back(std::move(run));
    }
    const auto threshold = static_cast<int64_t>(random() % 200);
    std::set<size_t> seen;
    for (const auto& group : PlanFusion(batch, threshold)) {
      int64_t bytes = 0;
      for (const size_t i : group) {
        EXPECT_TRUE(seen.insert(i).second);
        EXPECT_EQ(batch[i].set, batch[group[0]].set);
        bytes += TotalBytes(batch[i].request);
      }
      EXPECT_TRUE(group.size() == 1 || bytes <= threshold);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
    }
    EXPECT_EQ(seen.size(), batch.size());
  }
}

}  // namespace
}  // namespace tf_hvd

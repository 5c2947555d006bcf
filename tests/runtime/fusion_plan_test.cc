#include "runtime/fusion_plan.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <vector>

namespace tf_hvd {
namespace {

using Request = tf_hvd::Run;  // not the test's own member of that name
using Plan = std::vector<std::vector<size_t>>;

// An allreduce of `floats` float32.
Request Allreduce(int64_t floats) {
  Request run;
  run.record.tensors.push_back({DType::kFloat32, {floats}});
  return run;
}

Request Kind(OpKind kind) {
  Request run = Allreduce(1);
  run.record.kind = kind;
  return run;
}

std::vector<Request> Runs(const std::vector<int64_t>& floats) {
  std::vector<Request> runs;
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
  std::vector<Request> frame = Runs({1, 1, 1, 1});
  frame[1].record.tensors[0].dtype = DType::kInt32;
  EXPECT_EQ(PlanFusion(frame, 100), (Plan{{0, 2, 3}, {1}}));
  frame[3].record.tensors[0].dtype = DType::kInt32;
  EXPECT_EQ(PlanFusion(frame, 100), (Plan{{0, 2}, {1, 3}}));
}

TEST(FusionPlan, OtherKindsAndErrorsStandAlone) {
  std::vector<Request> frame = Runs({1, 1});
  for (const OpKind kind :
       {OpKind::kAllgather, OpKind::kBroadcast, OpKind::kJoin, OpKind::kBarrier,
        OpKind::kAddSet, OpKind::kRemoveSet}) {
    frame.push_back(Kind(kind));
    frame.push_back(Kind(kind));
  }
  frame[1].error = "mismatch";
  Plan expected;
  for (size_t i = 0; i < frame.size(); ++i) expected.push_back({i});
  EXPECT_EQ(PlanFusion(frame, 1000), expected);
}

TEST(FusionPlan, WhatMustBeEqual) {
  const auto apart = [](const char* what, void (*change)(Request*)) {
    std::vector<Request> frame = Runs({1, 1});
    change(&frame[1]);
    EXPECT_EQ(PlanFusion(frame, 1000), (Plan{{0}, {1}})) << what;
  };
  apart("set", [](Request* run) { run->set = 3; });
  apart("type",
        [](Request* run) { run->record.tensors[0].dtype = DType::kFloat64; });
  apart("operation",
        [](Request* run) { run->record.reduce_op = ReduceOp::kMax; });
  apart("prescale", [](Request* run) { run->record.prescale = 2; });
  apart("postscale", [](Request* run) { run->record.postscale = 2; });
  apart("device", [](Request* run) { run->record.device = DeviceKind::kGpu; });
}

TEST(FusionPlan, GroupsCountAllTheirTensors) {
  std::vector<Request> frame = Runs({1, 1});
  frame[0].record.tensors.push_back({DType::kFloat32, {3}});
  EXPECT_EQ(PlanFusion(frame, 20), (Plan{{0, 1}}));
  EXPECT_EQ(PlanFusion(frame, 19), (Plan{{0}, {1}}));
}

// A group of several types cannot be one reduction: it must not draw others in.
TEST(FusionPlan, GroupsOfMixedTypesStandAlone) {
  std::vector<Request> frame = Runs({1, 1, 1});
  frame[1].record.tensors.push_back({DType::kInt32, {3}});
  EXPECT_EQ(PlanFusion(frame, 1000), (Plan{{0, 2}, {1}}));
}

TEST(FusionPlan, EachIndexOnceAndWithinTheThreshold) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<Request> frame;
    for (size_t n = random() % 30; n > 0; --n) {
      Request run = Allreduce(static_cast<int64_t>(random() % 20));
      run.set = static_cast<int32_t>(random() % 2);
      if (random() % 3 == 0) run.record.kind = OpKind::kAllgather;
      if (random() % 5 == 0) run.error = "no";
      frame.push_back(std::move(run));
    }
    const auto threshold = static_cast<int64_t>(random() % 200);
    std::set<size_t> seen;
    for (const auto& group : PlanFusion(frame, threshold)) {
      int64_t bytes = 0;
      for (const size_t i : group) {
        EXPECT_TRUE(seen.insert(i).second);
        EXPECT_EQ(frame[i].set, frame[group[0]].set);
        bytes += TotalBytes(frame[i].record);
      }
      EXPECT_TRUE(group.size() == 1 || bytes <= threshold);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
    }
    EXPECT_EQ(seen.size(), frame.size());
  }
}

}  // namespace
}  // namespace tf_hvd

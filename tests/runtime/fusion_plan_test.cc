#include <gtest/gtest.h>

#include <random>
#include <set>
#include <utility>
#include <vector>

#include "runtime/execution/executor.h"
#include "tests/runtime/response_request.h"

namespace tf_hvd {
namespace {

using Plan = std::vector<std::vector<size_t>>;

// An allreduce of `floats` float32.
Response Allreduce(int64_t floats) {
  Request request;
  request.tensors.push_back({DType::kFloat32, {floats}});
  Response run;
  run.request = SharedRequest(std::move(request));
  return run;
}

Response Kind(OpKind kind) {
  Response run = Allreduce(1);
  ChangeRequest(&run, [kind](Request* request) { request->kind = kind; });
  return run;
}

std::vector<Response> Runs(const std::vector<int64_t>& floats) {
  std::vector<Response> runs;
  for (const int64_t count : floats) runs.push_back(Allreduce(count));
  return runs;
}

TEST(FusionPlan, Empty) { EXPECT_EQ(PlanFusion({}, 100), Plan()); }

TEST(FusionPlan, FusesUpToTheThreshold) {
  EXPECT_EQ(PlanFusion(Runs({1, 2, 1}), 16), (Plan{{0, 1, 2}}));
  EXPECT_EQ(PlanFusion(Runs({1, 2, 1}), 15), (Plan{{0, 1}, {2}}));
  EXPECT_EQ(PlanFusion(Runs({1, 1, 1, 1, 1}), 8), (Plan{{0, 1}, {2, 3}, {4}}));
}

TEST(FusionPlan, RequestAboveTheThresholdIsNotFused) {
  EXPECT_EQ(PlanFusion(Runs({100, 1, 1}), 16), (Plan{{0}, {1, 2}}));
}

TEST(FusionPlan, ZeroDisablesFusion) {
  EXPECT_EQ(PlanFusion(Runs({1, 1}), 0), (Plan{{0}, {1}}));
  EXPECT_EQ(PlanFusion(Runs({0, 0}), 0), (Plan{{0}, {1}}));
}

TEST(FusionPlan, SkipsRequestsThatDoNotMatch) {
  std::vector<Response> batch = Runs({1, 1, 1, 1});
  SetTensors(&batch[1], {{DType::kInt32, {1}}});
  EXPECT_EQ(PlanFusion(batch, 100), (Plan{{0, 2, 3}, {1}}));
  SetTensors(&batch[3], {{DType::kInt32, {1}}});
  EXPECT_EQ(PlanFusion(batch, 100), (Plan{{0, 2}, {1, 3}}));
}

TEST(FusionPlan, OtherKindsAndErrorsAreNotFused) {
  std::vector<Response> batch = Runs({1, 1});
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

TEST(FusionPlan, PropertiesThatMustBeEqual) {
  const auto apart = [](const char* what, void (*change)(Request*)) {
    std::vector<Response> batch = Runs({1, 1});
    ChangeRequest(&batch[1], change);
    EXPECT_EQ(PlanFusion(batch, 1000), (Plan{{0}, {1}})) << what;
  };
  apart("type", [](Request* r) { r->tensors[0].dtype = DType::kFloat64; });
  apart("operation", [](Request* r) { r->reduce_op = ReduceOp::kMax; });
  apart("prescale", [](Request* r) { r->prescale = 2; });
  apart("postscale", [](Request* r) { r->postscale = 2; });
  apart("device", [](Request* r) { r->device = DeviceKind::kGpu; });
  std::vector<Response> batch = Runs({1, 1});
  batch[1].key.first = 3;
  EXPECT_EQ(PlanFusion(batch, 1000), (Plan{{0}, {1}})) << "set";
}

TEST(FusionPlan, GroupSizeIncludesAllTensors) {
  std::vector<Response> batch = Runs({1, 1});
  SetTensors(&batch[0], {{DType::kFloat32, {1}}, {DType::kFloat32, {3}}});
  EXPECT_EQ(PlanFusion(batch, 20), (Plan{{0, 1}}));
  EXPECT_EQ(PlanFusion(batch, 19), (Plan{{0}, {1}}));
}

// A group of several types cannot be one reduction: no other request may be
// fused with it.
TEST(FusionPlan, GroupsOfMixedTypesAreNotFused) {
  std::vector<Response> batch = Runs({1, 1, 1});
  SetTensors(&batch[1], {{DType::kFloat32, {1}}, {DType::kInt32, {3}}});
  EXPECT_EQ(PlanFusion(batch, 1000), (Plan{{0, 2}, {1}}));
}

TEST(FusionPlan, EachIndexOnceAndWithinTheThreshold) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<Response> batch;
    for (size_t n = random() % 30; n > 0; --n) {
      Response run = Allreduce(static_cast<int64_t>(random() % 20));
      run.key.first = static_cast<int32_t>(random() % 2);
      if (random() % 3 == 0) {
        ChangeRequest(&run, [](Request* r) { r->kind = OpKind::kAllgather; });
      }
      if (random() % 5 == 0) run.error = "no";
      batch.push_back(std::move(run));
    }
    const auto threshold = static_cast<int64_t>(random() % 200);
    std::set<size_t> seen;
    for (const auto& group : PlanFusion(batch, threshold)) {
      int64_t bytes = 0;
      for (const size_t i : group) {
        EXPECT_TRUE(seen.insert(i).second);
        EXPECT_EQ(batch[i].key.first, batch[group[0]].key.first);
        bytes += TotalBytes(*batch[i].request);
      }
      EXPECT_TRUE(group.size() == 1 || bytes <= threshold);
      EXPECT_TRUE(std::is_sorted(group.begin(), group.end()));
    }
    EXPECT_EQ(seen.size(), batch.size());
  }
}

}  // namespace
}  // namespace tf_hvd

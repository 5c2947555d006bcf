#include "runtime/execution/loose_requests.h"

#include <gtest/gtest.h>

#include <string>

namespace tf_hvd {
namespace {

Request Small(int64_t elements = 10) {
  Request request;
  request.device = DeviceKind::kGpu;
  request.tensors.push_back({DType::kFloat32, {elements}});
  return request;
}

// The warnings in some steps with `count` requests each.
std::string Steps(LooseRequests* loose, int count, const Request& request,
                  int steps = 3) {
  std::string said;
  for (int step = 0; step < steps; ++step) {
    for (int i = 0; i < count; ++i) {
      said += loose->Note({0, "gradient." + std::to_string(i)}, request);
    }
  }
  return said;
}

TEST(LooseRequests, WarnsOnceWithTheFix) {
  LooseRequests loose;
  EXPECT_EQ(Steps(&loose, 161, Small()),
            "161 small tensors on a GPU are reduced individually in each step, "
            "with one NCCL call each. Use hvd.grouped_allreduce to reduce them "
            "in one call, as DistributedOptimizer and DistributedGradientTape "
            "do with gradients");
  EXPECT_EQ(Steps(&loose, 200, Small()), "");
}

TEST(LooseRequests, NoWarningForFewOrLargeTensors) {
  LooseRequests loose;
  EXPECT_EQ(Steps(&loose, 31, Small(), 10), "");
  EXPECT_EQ(Steps(&loose, 161, Small(300'000)), "");
}

TEST(LooseRequests, NoWarningOnTheCpu) {
  LooseRequests loose;
  Request request = Small();
  request.device = DeviceKind::kCpu;
  EXPECT_EQ(Steps(&loose, 161, request), "");
}

TEST(LooseRequests, NoWarningForGroups) {
  LooseRequests loose;
  Request request = Small();
  request.tensors.push_back(request.tensors[0]);
  EXPECT_EQ(Steps(&loose, 161, request), "");
}

// Eager calls without a name get a new one each.
TEST(LooseRequests, NoWarningForOneTensorPerStep) {
  LooseRequests loose;
  std::string said;
  for (int step = 0; step < 20'000; ++step) {
    said += loose.Note({0, "noname." + std::to_string(step)}, Small());
    said += loose.Note({0, "loss"}, Small());
  }
  EXPECT_EQ(said, "");
}

}  // namespace
}  // namespace tf_hvd

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

// What is said in some steps of so many requests.
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

TEST(LooseRequests, AreToldOnceWithTheCure) {
  LooseRequests loose;
  EXPECT_EQ(Steps(&loose, 161, Small()),
            "161 small tensors on a GPU are reduced one by one in each step, a "
            "call of NCCL for each; hvd.grouped_allreduce reduces them in one "
            "call, as DistributedOptimizer and DistributedGradientTape do with "
            "gradients");
  EXPECT_EQ(Steps(&loose, 200, Small()), "");
}

TEST(LooseRequests, AFewOrLargeOnesAreAllRight) {
  LooseRequests loose;
  EXPECT_EQ(Steps(&loose, 31, Small(), 10), "");
  EXPECT_EQ(Steps(&loose, 161, Small(300'000)), "");
}

TEST(LooseRequests, OnTheCpuTheyAreFused) {
  LooseRequests loose;
  Request request = Small();
  request.device = DeviceKind::kCpu;
  EXPECT_EQ(Steps(&loose, 161, request), "");
}

TEST(LooseRequests, AGroupIsNotLoose) {
  LooseRequests loose;
  Request request = Small();
  request.tensors.push_back(request.tensors[0]);
  EXPECT_EQ(Steps(&loose, 161, request), "");
}

// Eager calls without a name get a new one each.
TEST(LooseRequests, OneInEachStepIsNotMany) {
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

// bazel run //benchmarks:gpu_calls -- [ranks] [steps]
//
// Counts the calls of CUDA and NCCL in a training step: kernels, collectives,
// queries, and functions that block until the device is idle, of which there
// must be none. Ranks are threads, each with a software GPU (tests/gpu/), so
// the counts are equal on any machine; nothing is timed. The first steps, which
// open devices and connect ranks, are counted separately.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "tests/gpu/counted_calls.h"
#include "tests/gpu/software_gpu.h"
#include "tests/gpu/software_nccl.h"
#include "tests/gpu/training_step.h"

namespace tf_hvd {
namespace {

struct Column {
  const char* title;
  std::function<int64_t(const CallCounts& calls)> of;
};

// Calls of one function.
Column Calls(const char* title, const std::string& function) {
  return {title, [function](const CallCounts& c) { return c.of(function); }};
}

const std::vector<Column>& Columns() {
  static const std::vector<Column> columns = {
      Calls("launches", "cuLaunchKernel"),
      Calls("copies", "cuMemcpyAsync"),
      {"NCCL calls", &CallCounts::nccl_calls},
      Calls("stream waits", "cuStreamWaitEvent"),
      Calls("host functions", "cuLaunchHostFunc"),
      Calls("events", "cuEventRecord"),
      Calls("event queries", "cuEventQuery"),
      {"host syncs", &CallCounts::synchronizations},
      {"allocations", &CallCounts::allocations},
  };
  return columns;
}

void PrintRow(const std::string& what, const CallCounts& calls, int steps) {
  std::printf("%-18s", what.c_str());
  for (const Column& column : Columns()) {
    std::printf("%15.6g", static_cast<double>(column.of(calls)) / steps);
  }
  std::printf("\n");
}

// False if the job failed.
bool Measure(const StepPlan& plan, bool with_nccl) {
  SoftwareGpu gpu(plan.ranks, 1);
  SoftwareNccl nccl(&gpu);
  std::vector<StepCalls> calls;
  const Status status =
      CountSteps(plan, SoftwareGpu::Cuda(),
                 with_nccl ? SoftwareNccl::Api() : nullptr, &calls);
  std::printf("%s, %d ranks, %d requests in a step\n%-18s",
              with_nccl ? "by NCCL" : "through the host's memory", plan.ranks,
              kRequestsOfAStep, "");
  for (const Column& column : Columns()) std::printf("%15s", column.title);
  std::printf("\n");
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    const std::string name = "rank " + std::to_string(rank);
    PrintRow(name + ", start", calls[rank].warmup, 1);
    PrintRow(name + ", a step", calls[rank].steps, plan.steps);
  }
  if (!status.ok()) std::printf("failed: %s\n", status.message().c_str());
  for (const std::string& fault : gpu.Faults()) {
    std::printf("fault: %s\n", fault.c_str());
  }
  return status.ok() && gpu.Faults().empty();
}

}  // namespace
}  // namespace tf_hvd

int main(int argc, char** argv) {
  tf_hvd::StepPlan plan;
  if (argc > 1) plan.ranks = std::atoi(argv[1]);
  if (argc > 2) plan.steps = std::atoi(argv[2]);
  if (argc > 3 || plan.ranks < 1 || plan.ranks > 64 || plan.steps < 1) {
    std::fprintf(stderr, "gpu_calls [ranks, 1 to 64] [steps]\n");
    return 2;
  }
  plan.warmup = 1;
  const bool by_nccl = tf_hvd::Measure(plan, /*with_nccl=*/true);
  const bool by_host = tf_hvd::Measure(plan, /*with_nccl=*/false);
  std::printf("repeat with: bazel run //benchmarks:gpu_calls -- %d %d\n",
              plan.ranks, plan.steps);
  return by_nccl && by_host ? 0 : 1;
}

// Steps of a training job on GPUs, and which of CUDA's and NCCL's functions
// they call: buckets of gradients, one of them larger than the memory in which
// tensors are put together, rows that all ranks gather, and a broadcast, while
// the stream that computes goes on. benchmarks/gpu_calls.cc prints the counts,
// gpu_calls_test.cc pins those that must be zero.
#ifndef TF_HVD_TESTS_GPU_TRAINING_STEP_H_
#define TF_HVD_TESTS_GPU_TRAINING_STEP_H_

#include <functional>
#include <vector>

#include "base/status.h"
#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/nccl_api.h"
#include "tests/gpu/counted_calls.h"

namespace tf_hvd {

inline constexpr int kRequestsOfAStep = 6;

struct StepPlan {
  int ranks = 2;
  int warmup = 4;  // steps that do not count
  int steps = 20;
};

// One rank's calls.
struct StepCalls {
  CallCounts warmup{{}};  // until then, and what opens the devices
  CallCounts steps{{}};   // of all steps that count
};

// Runs the job with ranks as threads, rank r on GPU r, and compares the results
// of the last step. `nccl`: null to go by way of the host's memory. Result: by
// rank.
Status CountSteps(const StepPlan& plan, const CudaApi* cuda,
                  const NcclApi* nccl, std::vector<StepCalls>* calls);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_TRAINING_STEP_H_

// Steps of a training job on GPUs, and the functions of CUDA and NCCL that they
// call: buckets of gradients, one of them larger than the staging memory, rows
// that all ranks gather, and a broadcast, while the computing stream continues.
// benchmarks/gpu_calls.cc prints the counts, gpu_calls_test.cc checks those
// that must be zero.
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
  int warmup = 4;  // steps that are not counted
  int steps = 20;
};

// One rank's calls.
struct StepCalls {
  CallCounts warmup{{}};  // up to then, including the opening of devices
  CallCounts steps{{}};   // of all counted steps
};

// Runs the job with ranks as threads, rank r on GPU r, and checks the results
// of the last step. `nccl`: null to send through the host's memory. Returns the
// counts by rank.
Status CountSteps(const StepPlan& plan, const CudaApi* cuda,
                  const NcclApi* nccl, std::vector<StepCalls>* calls);

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_TRAINING_STEP_H_

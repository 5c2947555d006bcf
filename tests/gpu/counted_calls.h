// CountedCalls: tables of CUDA's and NCCL's functions that count calls per
// device and forward them to other tables: to a software GPU's, or to a real
// driver's.
//
// The tables have no synchronize function, so the runtime cannot call one.
// Other functions may still wait for the device or the driver; a training step
// must not call those either.
//
// One instance per process. Any thread.
#ifndef TF_HVD_TESTS_GPU_COUNTED_CALLS_H_
#define TF_HVD_TESTS_GPU_COUNTED_CALLS_H_

#include <cstdint>
#include <map>
#include <string>

#include "runtime/transport/gpu/cuda_api.h"
#include "runtime/transport/gpu/nccl_api.h"

namespace tf_hvd {

// Numbers of calls by the function's name: "cuLaunchKernel".
class CallCounts {
 public:
  explicit CallCounts(std::map<std::string, int64_t> calls)
      : calls_(std::move(calls)) {}

  int64_t of(const std::string& name) const {
    const auto found = calls_.find(name);
    return found == calls_.end() ? 0 : found->second;
  }
  // Functions that wait for the device, or may: they allocate or free memory
  // (CUDA's guide calls that implicit synchronization), create or destroy
  // contexts, streams and communicators, or load code.
  int64_t synchronizations() const;
  // Creation and destruction of memory, streams and events.
  int64_t allocations() const;
  // Collectives of NCCL; members of a group count separately.
  int64_t nccl_calls() const;
  // The counts as text for a test's messages: "cuMemAlloc 2, cuMemFree 1".
  std::string Synchronizations() const;

  CallCounts operator-(const CallCounts& before) const;

 private:
  std::map<std::string, int64_t> calls_;
};

class CountedCalls {
 public:
  // The counting table in front of `inner`, which outlives all calls.
  static const CudaApi* Cuda(const CudaApi* inner);
  // Call it after Cuda. Null if `inner` is null.
  static const NcclApi* Nccl(const NcclApi* inner);

  // Calls made while a context of this device was current; -1: none was.
  static CallCounts Of(int device);
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_COUNTED_CALLS_H_

// CountedCalls: tables of CUDA's and NCCL's functions that count what is called
// of them, for each device, and pass it on to other tables: to a software
// GPU's, or to a real driver's.
//
// What the tables do not have, nobody can call: there is no synchronize in
// them. What is left are functions that may wait for the device or the driver
// by themselves; in a step of training there must be none of these either.
//
// One in a process. Any thread.
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
  // Those that wait for the device, or may: they allocate or free memory
  // (CUDA's guide calls that implicit synchronization), make or end contexts,
  // streams and communicators, or load code.
  int64_t synchronizations() const;
  // Of memory, streams and events; and their ends.
  int64_t allocations() const;
  // Collectives of NCCL; those of a group are one each.
  int64_t nccl_calls() const;
  // The same as text: "cuMemAlloc 2, cuMemFree 1"; for what a test says.
  std::string Synchronizations() const;

  CallCounts operator-(const CallCounts& before) const;

 private:
  std::map<std::string, int64_t> calls_;
};

class CountedCalls {
 public:
  // The table that counts, in front of `inner`, which outlives all calls.
  static const CudaApi* Cuda(const CudaApi* inner);
  // After Cuda. Null if `inner` is.
  static const NcclApi* Nccl(const NcclApi* inner);

  // What was called with a context of this device current; -1: with none.
  static CallCounts Of(int device);
};

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_COUNTED_CALLS_H_

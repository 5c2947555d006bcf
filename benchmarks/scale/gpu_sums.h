// Sums of tensors in GPU memory, as NCCL makes them: the calls of all ranks
// follow each other on a stream, and one starts when the last rank has arrived.
#ifndef TF_HVD_BENCHMARKS_SCALE_GPU_SUMS_H_
#define TF_HVD_BENCHMARKS_SCALE_GPU_SUMS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string_view>

#include "benchmarks/scale/messages.h"
#include "benchmarks/scale/network.h"
#include "benchmarks/scale/virtual_time.h"
#include "runtime/contract/operation.h"

namespace tf_hvd::scale {

enum class GpuAlgorithm { kRing, kTrees };

// Costs of a GPU when it sums several tensors as one: it packs them and unpacks
// the sums.
struct PackCosts {
  double launch_ns = 5000;  // of a kernel or a copy
  double byte_ns = 0.005;
};

// The stream that all ranks share.
class GpuStream {
 public:
  GpuStream(VirtualTime* time, Network* network, GpuAlgorithm algorithm,
            const PackCosts& pack)
      : time_(time), network_(network), algorithm_(algorithm), pack_(pack) {}

  // A rank makes the call with this number, for `tensors` tensors; packing and
  // unpacking each take as many launches. `done` is called when the sum is
  // complete.
  void Call(uint64_t number, double bytes, size_t tensors, size_t launches,
            std::function<void()> done);

 private:
  struct Calls {
    size_t ranks = 0;
    double begin_ns = 0;
    std::vector<std::function<void()>> done;
  };

  VirtualTime* const time_;
  Network* const network_;
  const GpuAlgorithm algorithm_;
  const PackCosts pack_;
  std::map<uint64_t, Calls> calls_;
  double free_ns_ = 0;
};

// The Backend of one rank.
class GpuSums final : public Backend {
 public:
  GpuSums(GpuStream* stream, WakeRank wake, int rank)
      : stream_(stream), wake_(std::move(wake)), rank_(rank) {}

  std::string_view name() const override { return "nccl"; }
  bool Serves(const OperationSpec& spec) const override {
    return spec.kind == OpKind::kAllreduce;
  }
  Status Make(OperationSpec spec,
              std::unique_ptr<Operation>* operation) override;
  // Like GpuBackend's.
  size_t window() const override { return 8; }

 private:
  GpuStream* const stream_;
  const WakeRank wake_;
  const int rank_;
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_GPU_SUMS_H_

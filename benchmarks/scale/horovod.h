// Horovod's agreement and fusion at the time its scaling was measured (2017,
// before 0.12). Once per cycle each rank reports its tensors to rank 0 and
// waits for the answer: the tensors that all ranks have, in fused calls.
#ifndef TF_HVD_BENCHMARKS_SCALE_HOROVOD_H_
#define TF_HVD_BENCHMARKS_SCALE_HOROVOD_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "benchmarks/scale/gpu_sums.h"
#include "benchmarks/scale/network.h"
#include "benchmarks/scale/virtual_time.h"

namespace tf_hvd::scale {

struct HorovodSettings {
  double cycle_ns = 5e6;                   // HOROVOD_CYCLE_TIME
  double fusion_bytes = 64.0 * (1 << 20);  // HOROVOD_FUSION_THRESHOLD
};

class Horovod {
 public:
  // `bytes`: the size of each tensor.
  Horovod(VirtualTime* time, Network* network, GpuStream* stream,
          const HorovodSettings& settings, std::vector<double> bytes);

  void Start();
  void Submit(int rank, size_t tensor, std::function<void()> done);

 private:
  struct Fused {
    std::vector<size_t> tensors;
    double bytes = 0;
  };
  struct Rank {
    std::vector<size_t> fresh;                // since its last cycle
    std::vector<std::function<void()>> done;  // by tensor
    uint64_t calls = 0;
  };

  void Tell(size_t rank);
  void Answer();
  void Take(size_t rank, const std::vector<Fused>& answer);
  std::vector<Fused> Fuse();

  VirtualTime* const time_;
  Network* const network_;
  GpuStream* const stream_;
  const HorovodSettings settings_;
  const std::vector<double> bytes_;
  std::vector<Rank> ranks_;
  // On rank 0:
  std::vector<size_t> told_;   // by tensor: number of ranks that have it
  std::vector<size_t> ready_;  // tensors that all ranks have, in their order
  size_t heard_ = 0;           // ranks that reported in this cycle
  double cycle_began_ns_ = 0;
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_HOROVOD_H_

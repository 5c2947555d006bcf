// What a job computes, and how it is measured: steps of forward and backward
// pass, in which gradients come one after the other, and the sums that a step
// waits for.
#ifndef TF_HVD_BENCHMARKS_SCALE_TRAINING_H_
#define TF_HVD_BENCHMARKS_SCALE_TRAINING_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "benchmarks/scale/virtual_time.h"

namespace tf_hvd::scale {

// What is summed together: a bucket, or a tensor.
struct Gradients {
  std::string name;
  std::vector<int64_t> tensors;  // elements, float32; none: a barrier
  double ready_ns = 0;           // since the beginning of the step
};

double BytesOf(const Gradients& gradients);

struct TrainingSettings {
  std::vector<Gradients> gradients;
  double compute_ns = 0;  // forward and backward pass
  double update_ns = 0;   // when all sums are there
  // Times of a step by their mean, as measured; one is drawn for each rank and
  // step. Empty: no jitter.
  std::vector<double> jitter;
  // They are 1 + scale * (drawn - 1).
  double jitter_scale = 1;
  // The part of it that comes at one point of the step, as a delay. The rest
  // slows down all of it.
  double jitter_delay = 0;
  uint64_t seed = 1;
  int steps = 10;
  int warmup = 2;  // not measured
};

class Training {
 public:
  // Sums gradients of a rank, all of them in every step, and calls `done` when
  // the sum is there.
  using Sum = std::function<void(int rank, size_t gradients,
                                 std::function<void()> done)>;

  Training(VirtualTime* time, const TrainingSettings& settings, int ranks,
           Sum sum);

  void Start();
  bool ended() const { return left_ == 0; }

  // How long each step took, from the end of the one before on the last rank.
  const std::vector<double>& steps_ns() const { return steps_ns_; }

 private:
  struct Rank {
    int step = 0;
    size_t open = 0;  // sums, and the computation
  };
  // How a step's computation goes on a rank: so many times its length, and
  // behind that point of it later by this.
  struct Pace {
    double factor = 1;
    double point = 0;  // 0 to 1
    double delay_ns = 0;
  };

  void BeginStep(int rank);
  void EndPart(int rank);
  void EndStep(int rank);
  Pace DrawPace(int rank, int step) const;

  VirtualTime* const time_;
  const TrainingSettings& settings_;
  const Sum sum_;
  const double least_jitter_;
  std::vector<Rank> ranks_;
  int left_;
  // By step: ranks that have not ended it.
  std::vector<int> open_;
  double last_end_ns_ = 0;
  std::vector<double> steps_ns_;
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_TRAINING_H_

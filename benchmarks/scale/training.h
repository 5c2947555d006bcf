// A job's computation and its measurement: steps of forward and backward pass,
// in which gradients become ready one after the other, and the sums that a step
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

// Tensors that are summed together: a bucket or a single tensor.
struct Gradients {
  std::string name;
  std::vector<int64_t> tensors;  // elements, float32; none: a barrier
  double ready_ns = 0;           // since the start of the step
};

double BytesOf(const Gradients& gradients);

struct TrainingSettings {
  std::vector<Gradients> gradients;
  double compute_ns = 0;  // forward and backward pass
  double update_ns = 0;   // after all sums
  // Measured times of a step divided by their mean; one is drawn for each rank
  // and step. Empty: no jitter.
  std::vector<double> jitter;
  // Factors are 1 + scale * (drawn - 1).
  double jitter_scale = 1;
  // The fraction of the jitter that is a delay at one point of the step. The
  // rest slows down the whole step.
  double jitter_delay = 0;
  uint64_t seed = 1;
  int steps = 10;
  int warmup = 2;  // not measured
};

class Training {
 public:
  // Sums a rank's gradients, all of them in every step, and calls `done` when
  // the sum is complete.
  using Sum = std::function<void(int rank, size_t gradients,
                                 std::function<void()> done)>;

  Training(VirtualTime* time, const TrainingSettings& settings, int ranks,
           Sum sum);

  void Start();
  bool ended() const { return left_ == 0; }

  // Time of each step, measured between the ends of steps on the last rank.
  const std::vector<double>& steps_ns() const { return steps_ns_; }

 private:
  struct Rank {
    int step = 0;
    size_t open = 0;  // sums, and the computation
  };
  // The computation of a rank's step: its time is multiplied by a factor, and
  // everything after `point` is delayed.
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

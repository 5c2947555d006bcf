// A simulated job: its nodes and ranks, the training, and the implementation of
// the sums.
#ifndef TF_HVD_BENCHMARKS_SCALE_JOB_H_
#define TF_HVD_BENCHMARKS_SCALE_JOB_H_

#include <cstdint>
#include <vector>

#include "benchmarks/scale/charged_calls.h"
#include "benchmarks/scale/gpu_sums.h"
#include "benchmarks/scale/horovod.h"
#include "benchmarks/scale/network.h"
#include "benchmarks/scale/sim_rank.h"
#include "benchmarks/scale/training.h"

namespace tf_hvd::scale {

// The implementation of the sums.
enum class Schedule {
  kHost,     // this project's backends, in the memory of hosts
  kGpu,      // this project's agreement, and NCCL
  kHorovod,  // Horovod's agreement, and NCCL
};

struct JobSettings {
  int nodes = 1;
  int ranks_per_node = 1;
  Schedule schedule = Schedule::kHost;
  GpuAlgorithm algorithm = GpuAlgorithm::kRing;
  NetworkCosts network;
  PackCosts pack;
  CoreCosts core;
  LoopCosts loop;
  Config config;
  HorovodSettings horovod;
  TrainingSettings training;
};

struct JobResult {
  std::vector<double> steps_ns;
  // Counts between nodes, over all steps: messages of the agreement, and of
  // tensors in host memory.
  uint64_t agreement_messages = 0;
  uint64_t data_messages = 0;
  double agreement_bytes = 0;
  double data_bytes = 0;
  uint64_t events = 0;
};

JobResult RunJob(const JobSettings& settings);

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_JOB_H_

// Network: how long bytes take between ranks. Within a node by its memory, or
// between GPUs by its bus; between nodes through one network card each, in and
// out at the same time, one message after the other.
#ifndef TF_HVD_BENCHMARKS_SCALE_NETWORK_H_
#define TF_HVD_BENCHMARKS_SCALE_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "benchmarks/scale/virtual_time.h"

namespace tf_hvd::scale {

struct NetworkCosts {
  double latency_ns = 2000;        // of a message between nodes
  double byte_ns = 0.1;            // of a network card, and of what TCP copies
  double burst_bytes = 0;          // that pass at once after a pause (tc's tbf)
  double inside_latency_ns = 300;  // of a message within a node
  double inside_byte_ns = 0.1;
  double message_ns = 500;     // of a core, to send or receive one
  double eager_bytes = 65536;  // longer ones wait until they are asked for
};

class Network {
 public:
  Network(VirtualTime* time, const NetworkCosts& costs,
          std::vector<size_t> node_of);

  size_t ranks() const { return node_of_.size(); }
  size_t nodes() const { return out_free_ns_.size(); }
  size_t NodeOf(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  const NetworkCosts& costs() const { return costs_; }

  // When a message that is sent now has arrived.
  int64_t Carry(int from, int to, size_t bytes);
  // From one rank to the other, without any bytes.
  int64_t LatencyNs(int from, int to) const;

  // How long NCCL needs for the sum of so many bytes once all ranks have come,
  // by its own model (tuning.cc) and with the protocol that this prefers.
  //
  // By a ring through all ranks: each sends 2 (n - 1) times an n-th of the
  // bytes to the next (Patarasuk and Yuan, "Bandwidth optimal all-reduce
  // algorithms for clusters of workstations", 2009); a node is entered once.
  double RingNs(double bytes) const;
  // By two binary trees, each of half of the bytes (Sanders, Speck and Traff,
  // "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
  // 2009), as NCCL has them since 2.4: chains within nodes, trees across.
  double TreesNs(double bytes) const;

  uint64_t messages_across() const { return messages_; }
  double bytes_across() const { return bytes_; }

 private:
  double Pass(double at_ns, double bytes, double* free_ns) const;
  // Of a byte, on the narrowest way.
  double SlowestByteNs() const;

  VirtualTime* const time_;
  const NetworkCosts costs_;
  const std::vector<size_t> node_of_;
  // By node: when its card has sent, or received, what it was given.
  std::vector<double> out_free_ns_;
  std::vector<double> in_free_ns_;
  uint64_t messages_ = 0;
  double bytes_ = 0;
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_NETWORK_H_

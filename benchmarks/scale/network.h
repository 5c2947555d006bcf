// Network: transfer times between ranks. Within a node data goes through its
// memory, or between GPUs through its bus. Between nodes it goes through one
// network card per node, which sends and receives at the same time, one message
// after the other.
#ifndef TF_HVD_BENCHMARKS_SCALE_NETWORK_H_
#define TF_HVD_BENCHMARKS_SCALE_NETWORK_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "benchmarks/scale/virtual_time.h"

namespace tf_hvd::scale {

struct NetworkCosts {
  double latency_ns = 2000;        // of a message between nodes
  double byte_ns = 0.1;            // of a network card, and of TCP's copies
  double burst_bytes = 0;          // that pass at once after a pause (tc's tbf)
  double inside_latency_ns = 300;  // of a message within a node
  double inside_byte_ns = 0.1;
  double message_ns = 500;     // on a core, to send or receive a message
  double eager_bytes = 65536;  // longer messages wait until they are requested
};

class Network {
 public:
  Network(VirtualTime* time, const NetworkCosts& costs,
          std::vector<size_t> node_of);

  size_t ranks() const { return node_of_.size(); }
  size_t nodes() const { return out_free_ns_.size(); }
  size_t NodeOf(int rank) const { return node_of_[static_cast<size_t>(rank)]; }
  const NetworkCosts& costs() const { return costs_; }

  // When a message that is sent now arrives.
  int64_t Carry(int from, int to, size_t bytes);
  // From one rank to the other, without any bytes.
  int64_t LatencyNs(int from, int to) const;

  // Time that NCCL needs for a sum of `bytes` bytes once all ranks have
  // arrived, by NCCL's own model (tuning.cc) and with the protocol that the
  // model selects.
  //
  // By a ring through all ranks: each sends 2 (n - 1) times an n-th of the
  // bytes to the next (Patarasuk and Yuan, "Bandwidth optimal all-reduce
  // algorithms for clusters of workstations", 2009). The ring enters each node
  // once.
  double RingNs(double bytes) const;
  // By two binary trees, each with half of the bytes (Sanders, Speck and Traff,
  // "Two-tree algorithms for full bandwidth broadcast, reduction and scan",
  // 2009), as in NCCL since 2.4: chains within nodes, trees across them.
  double TreesNs(double bytes) const;

  uint64_t messages_across() const { return messages_; }
  double bytes_across() const { return bytes_; }

 private:
  double Pass(double at_ns, double bytes, double* free_ns) const;
  // Time of a byte on the narrowest link.
  double SlowestByteNs() const;

  VirtualTime* const time_;
  const NetworkCosts costs_;
  const std::vector<size_t> node_of_;
  // By node: when its card has sent, or received, all data so far.
  std::vector<double> out_free_ns_;
  std::vector<double> in_free_ns_;
  uint64_t messages_ = 0;
  double bytes_ = 0;
};

}  // namespace tf_hvd::scale

#endif  // TF_HVD_BENCHMARKS_SCALE_NETWORK_H_

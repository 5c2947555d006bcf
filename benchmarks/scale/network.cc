#include "benchmarks/scale/network.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tf_hvd::scale {
namespace {

// NCCL's own figures: time of a call, time of a step to another node and to
// another GPU by PCIe, and its share of the bandwidth.
struct Protocol {
  double call_ns;
  double across_ns;
  double inside_ns;
  double share;
};

// Simple, and LL: half of LL's bytes are flags.
constexpr Protocol kRing[] = {{8400, 14000, 5700, 1}, {6600, 2700, 1000, 0.5}};
constexpr Protocol kTrees[] = {{8400, 14000, 4000, 0.92},
                               {6800, 5000, 1000, 0.92 / 3.8}};

template <typename Time>
double Least(const Protocol (&protocols)[2], const Time& time) {
  return std::min(time(protocols[0]), time(protocols[1]));
}

}  // namespace

Network::Network(VirtualTime* time, const NetworkCosts& costs,
                 std::vector<size_t> node_of)
    : time_(time), costs_(costs), node_of_(std::move(node_of)) {
  const size_t nodes = 1 + *std::max_element(node_of_.begin(), node_of_.end());
  // As after a pause.
  out_free_ns_.resize(nodes, -costs_.burst_bytes * costs_.byte_ns);
  in_free_ns_ = out_free_ns_;
}

int64_t Network::LatencyNs(int from, int to) const {
  return WholeNs(NodeOf(from) == NodeOf(to) ? costs_.inside_latency_ns
                                            : costs_.latency_ns);
}

// When a card has processed bytes that arrive at that time.
double Network::Pass(double at_ns, double bytes, double* free_ns) const {
  const double saved_ns = costs_.burst_bytes * costs_.byte_ns;
  *free_ns = std::max(*free_ns, at_ns - saved_ns) + bytes * costs_.byte_ns;
  return std::max(*free_ns, at_ns);
}

// A message is received while it is sent.
int64_t Network::Carry(int from, int to, size_t bytes) {
  const auto length = static_cast<double>(bytes);
  const auto now = static_cast<double>(time_->now());
  if (NodeOf(from) == NodeOf(to)) {
    return WholeNs(now + costs_.inside_latency_ns +
                   length * costs_.inside_byte_ns);
  }
  ++messages_;
  bytes_ += length;
  const double sent = Pass(now, length, &out_free_ns_[NodeOf(from)]);
  const double begun = std::max(sent - length * costs_.byte_ns, now);
  return WholeNs(std::max(
      Pass(begun + costs_.latency_ns, length, &in_free_ns_[NodeOf(to)]),
      sent + costs_.latency_ns));
}

double Network::SlowestByteNs() const {
  return nodes() > 1 ? std::max(costs_.byte_ns, costs_.inside_byte_ns)
                     : costs_.inside_byte_ns;
}

double Network::RingNs(double bytes) const {
  const auto n = static_cast<double>(ranks());
  if (n == 1) return 0;
  const double across = nodes() > 1 ? static_cast<double>(nodes()) / n : 0;
  return Least(kRing, [&](const Protocol& by) {
    const double step = across * by.across_ns + (1 - across) * by.inside_ns;
    return by.call_ns +
           2 * (n - 1) * (step + SlowestByteNs() * bytes / n / by.share);
  });
}

double Network::TreesNs(double bytes) const {
  const auto n = static_cast<double>(ranks());
  if (n == 1) return 0;
  const auto of_nodes = static_cast<double>(nodes());
  return Least(kTrees, [&](const Protocol& by) {
    return by.call_ns + 2 * std::ceil(std::log2(of_nodes)) * by.across_ns +
           2 * (n / of_nodes - 1) * by.inside_ns +
           2 * SlowestByteNs() * bytes / by.share;
  });
}

}  // namespace tf_hvd::scale

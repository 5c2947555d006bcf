#include "benchmarks/scale/horovod.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tf_hvd::scale {

Horovod::Horovod(VirtualTime* time, Network* network, GpuStream* stream,
                 const HorovodSettings& settings, std::vector<double> bytes)
    : time_(time),
      network_(network),
      stream_(stream),
      settings_(settings),
      bytes_(std::move(bytes)),
      ranks_(network->ranks()),
      told_(bytes_.size()) {
  for (Rank& rank : ranks_) rank.done.resize(bytes_.size());
}

void Horovod::Start() {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    time_->At(0, [this, rank] { Tell(rank); });
  }
}

void Horovod::Submit(int rank, size_t tensor, std::function<void()> done) {
  Rank& one = ranks_[static_cast<size_t>(rank)];
  one.fresh.push_back(tensor);
  one.done[tensor] = std::move(done);
}

void Horovod::Tell(size_t rank) {
  if (rank == 0) cycle_began_ns_ = static_cast<double>(time_->now());
  auto fresh = std::exchange(ranks_[rank].fresh, {});
  const int64_t latency_ns =
      rank == 0 ? 0 : network_->LatencyNs(static_cast<int>(rank), 0);
  time_->At(time_->now() + latency_ns, [this, fresh = std::move(fresh)] {
    for (const size_t tensor : fresh) {
      if (++told_[tensor] < ranks_.size()) continue;
      told_[tensor] = 0;
      ready_.push_back(tensor);
    }
    if (++heard_ == ranks_.size()) Answer();
  });
}

// Rank 0 reads and answers the messages one after the other.
void Horovod::Answer() {
  heard_ = 0;
  const auto answer = std::make_shared<const std::vector<Fused>>(Fuse());
  const double message_ns = network_->costs().message_ns;
  const double read_ns = static_cast<double>(time_->now()) +
                         static_cast<double>(ranks_.size()) * message_ns;
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    const double latency_ns = static_cast<double>(
        rank == 0 ? 0 : network_->LatencyNs(0, static_cast<int>(rank)));
    const double at_ns =
        read_ns + static_cast<double>(rank) * message_ns + latency_ns;
    time_->At(WholeNs(at_ns), [this, rank, answer] { Take(rank, *answer); });
  }
}

std::vector<Horovod::Fused> Horovod::Fuse() {
  std::vector<Fused> all;
  for (const size_t tensor : std::exchange(ready_, {})) {
    if (all.empty() ||
        all.back().bytes + bytes_[tensor] > settings_.fusion_bytes) {
      all.emplace_back();
    }
    all.back().tensors.push_back(tensor);
    all.back().bytes += bytes_[tensor];
  }
  return all;
}

void Horovod::Take(size_t rank, const std::vector<Fused>& answer) {
  Rank& one = ranks_[rank];
  for (const Fused& fused : answer) {
    std::vector<std::function<void()>> done;
    for (const size_t tensor : fused.tensors) {
      done.push_back(std::move(one.done[tensor]));
    }
    // Each tensor is copied separately.
    stream_->Call(one.calls++, fused.bytes, fused.tensors.size(),
                  fused.tensors.size(), [done = std::move(done)] {
                    for (const auto& each : done) each();
                  });
  }
  const auto now = static_cast<double>(time_->now());
  const double next_ns = std::max(now, cycle_began_ns_ + settings_.cycle_ns);
  time_->At(WholeNs(next_ns), [this, rank] { Tell(rank); });
}

}  // namespace tf_hvd::scale

#include "runtime/transport/liveness/abort_path.h"

#include <string>
#include <utility>

namespace tf_hvd {
namespace {

AbortRecord DiedRecord(const Topology& topology, int rank) {
  return {
      AbortRecord::kDied, rank,
      topology.RankText(rank) + " died: its process ended without shutdown()"};
}

}  // namespace

AbortPath::AbortPath(const Topology* topology, ShmSegment* segment,
                     std::unique_ptr<AbortFlood> flood)
    : topology_(topology),
      segment_(segment),
      node_(topology
                ->nodes[static_cast<size_t>(topology->NodeOf(topology->rank))]),
      own_(topology->LocalRank()),
      board_(segment->abort_state(), segment->abort_slots(),
             static_cast<int>(node_.size()), own_),
      flood_(std::move(flood)) {
  if (flood_ != nullptr && own_ == 0) flood_->Listen();
}

void AbortPath::Raise(const AbortRecord& record) {
  if (!board_.Write(record)) return;
  for (size_t i = 0; i < node_.size(); ++i) {
    segment_->doorbell(static_cast<int>(i))->Ring();
  }
}

std::optional<AbortRecord> AbortPath::Poll(int64_t now_ns) {
  if (flood_ != nullptr) {
    while (const auto record = flood_->Receive()) Raise(*record);
  }
  if (now_ns - last_look_ns_ >= kLookNs) {
    last_look_ns_ = now_ns;
    LookForDeaths();
  }
  const uint32_t generation = board_.generation();
  if (generation == 0) return std::nullopt;
  if (generation != seen_generation_) {
    seen_generation_ = generation;
    const auto smallest = board_.Smallest();
    if (smallest && (!smallest_ || smallest->Before(*smallest_))) {
      smallest_ = smallest;
      smallest_since_ns_ = now_ns;
    }
  }
  if (flood_ != nullptr && smallest_) PassOn(now_ns);
  return smallest_;
}

// Each rank watches the next living one. A rank that finds it dead checks the
// ones after it, so that several deaths are all detected.
void AbortPath::LookForDeaths() {
  const int count = static_cast<int>(node_.size());
  for (int i = 1; i < count; ++i) {
    const int other = (own_ + i) % count;
    if (segment_->HasLeft(other)) continue;
    if (!segment_->HasDied(other)) return;
    Raise(DiedRecord(*topology_, node_[static_cast<size_t>(other)]));
  }
}

void AbortPath::PassOn(int64_t now_ns) {
  const uint64_t key = smallest_->Key();
  if (key >= board_.flooded_key()) return;
  const bool leader_is_late = now_ns - smallest_since_ns_ >= kLeaderGraceNs;
  if (own_ != 0 && !(leader_is_late && IsFirstAlive())) return;
  board_.set_flooded_key(key);
  flood_->Send(*smallest_);
}

bool AbortPath::IsFirstAlive() const {
  for (int other = 0; other < own_; ++other) {
    if (!segment_->HasLeft(other) && !segment_->HasDied(other)) return false;
  }
  return true;
}

}  // namespace tf_hvd

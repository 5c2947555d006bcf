#include "runtime/transport/shm/backend.h"

#include <algorithm>
#include <utility>

#include "compute/buffer_ops.h"
#include "runtime/contract/rank_group.h"
#include "runtime/transport/shm/operation.h"

namespace tf_hvd {

ShmBackend::ShmBackend(const ShmArena& arena, std::vector<int> node, int rank,
                       Wake wake, SlotOptions options)
    : arena_(arena),
      node_(std::move(node)),
      rank_(rank),
      wake_(std::move(wake)),
      options_(std::move(options)) {
  for (uint32_t slot = 0; slot < ShmArena::kSlots; ++slot) {
    free_.push_back(slot);
  }
}

ShmBackend::Stream* ShmBackend::StreamOf(int32_t set) {
  const auto found = streams_.find(set);
  if (found != streams_.end()) return &found->second;
  return &streams_.emplace(set, SlotWriter(&options_, &counts_)).first->second;
}

size_t ShmBackend::LocalRankOf(int rank) const {
  return static_cast<size_t>(
      std::lower_bound(node_.begin(), node_.end(), rank) - node_.begin());
}

int ShmBackend::FreeSlot() {
  for (auto one = in_use_.begin(); free_.empty() && one != in_use_.end();) {
    const bool read = std::all_of(
        one->readers.begin(), one->readers.end(),
        [&](const ProgressLine* line) {
          return line->done.load(std::memory_order_acquire) > one->piece;
        });
    if (read) free_.push_back(one->slot);
    one = read ? in_use_.erase(one) : std::next(one);
  }
  if (free_.empty()) return -1;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return static_cast<int>(slot);
}

bool ShmBackend::Serves(const OperationSpec& spec) const {
  if (spec.memory.kind == MemoryKind::kDevice) return false;
  if (spec.set < 0 || spec.set >= ShmArena::kSets) return false;
  if (Reduces(spec.kind) && !IsReducible(spec.reduce.dtype, spec.reduce.op)) {
    return false;
  }
  const std::vector<int>& ranks = *spec.ranks;
  return ranks.size() > 1 &&
         std::includes(node_.begin(), node_.end(), ranks.begin(), ranks.end());
}

Status ShmBackend::Make(OperationSpec spec,
                        std::unique_ptr<Operation>* operation) {
  size_t me = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &me));
  *operation =
      std::make_unique<ShmOperation>(this, std::move(spec), me, std::nullopt);
  return Status::Ok();
}

Status ShmBackend::MakeAcross(OperationSpec local, ShmAcross across,
                              std::unique_ptr<Operation>* operation) {
  size_t me = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(local, rank_, &me));
  *operation = std::make_unique<ShmOperation>(this, std::move(local), me,
                                              std::move(across));
  return Status::Ok();
}

}  // namespace tf_hvd

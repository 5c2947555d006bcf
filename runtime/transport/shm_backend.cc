#include "runtime/transport/shm_backend.h"

#include <algorithm>
#include <utility>

#include "kernels/buffer_ops.h"
#include "runtime/clock.h"
#include "runtime/transport/rank_group.h"
#include "runtime/transport/shm_pieces.h"

namespace tf_hvd {

class ShmOperation final : public Operation {
 public:
  ShmOperation(ShmBackend* backend, OperationSpec spec, size_t me);
  ~ShmOperation() override { StopGiving(); }

  Status Progress(int64_t budget_ns, Poll* poll) override;

  // Nobody but this rank writes to its memory.
  bool Abandon() override { return true; }

 private:
  using Counter = std::atomic<uint64_t> ShmLine::*;

  // Each does one thing to one piece, if that is due. Where a rank is waited
  // for, `awaited_` becomes its place.
  bool GiveOne();
  bool TakeOne();
  bool FetchOne();

  // The first of the others, if `asked` says so, that is not beyond `piece`.
  template <typename Asked>
  bool AllBeyond(uint64_t piece, Counter counter, const Asked& asked);
  void Publish(Counter counter, uint64_t pieces);
  void StopGiving();
  ShmSlots SlotsOf(uint64_t piece) const;

  static constexpr size_t kNobody = SIZE_MAX;

  ShmBackend* const backend_;
  const OperationSpec spec_;
  const size_t me_;
  const std::unique_ptr<ShmPieces> pieces_;
  ShmBackend::Stream* const stream_;
  std::vector<size_t> local_ranks_;  // by place
  std::vector<ShmLine*> lines_;      // by place
  bool begun_ = false;
  uint64_t first_ = 0;  // of the stream
  // Pieces of this operation that were given and so on.
  uint64_t given_ = 0;
  uint64_t taken_ = 0;
  uint64_t fetched_ = 0;
  size_t awaited_ = kNobody;
};

ShmOperation::ShmOperation(ShmBackend* backend, OperationSpec spec, size_t me)
    : backend_(backend),
      spec_(std::move(spec)),
      me_(me),
      pieces_(CutIntoPieces(spec_, me, backend->arena_.slot_bytes())),
      stream_(&backend->streams_[spec_.set]) {
  for (const int rank : *spec_.ranks) {
    local_ranks_.push_back(backend->LocalRankOf(rank));
    lines_.push_back(backend->arena_.line(spec_.set, local_ranks_.back()));
  }
  backend_->giving_.push_back(this);
}

void ShmOperation::StopGiving() {
  auto& giving = backend_->giving_;
  giving.erase(std::remove(giving.begin(), giving.end(), this), giving.end());
}

Status ShmOperation::Progress(int64_t budget_ns, Poll* poll) {
  if (!begun_) {
    if (backend_->giving_.front() != this) return Status::Ok();
    begun_ = true;
    first_ = stream_->given;
  }
  const int64_t until_ns = NowNs() + budget_ns;
  while (true) {
    if (given_ == pieces_->count() && pieces_->counted()) StopGiving();
    if (fetched_ == pieces_->count()) {
      poll->done = true;
      return Status::Ok();
    }
    awaited_ = kNobody;
    // What has come in is used while it is in the cache.
    if (!TakeOne() && !FetchOne() && !GiveOne()) break;
    poll->moved = true;
    if (NowNs() >= until_ns) return Status::Ok();
  }
  if (awaited_ != kNobody) poll->awaited = (*spec_.ranks)[awaited_];
  return Status::Ok();
}

template <typename Asked>
bool ShmOperation::AllBeyond(uint64_t piece, Counter counter,
                             const Asked& asked) {
  for (size_t place = 0; place < lines_.size(); ++place) {
    if (place == me_ || !asked(place)) continue;
    if ((lines_[place]->*counter).load(std::memory_order_acquire) <= piece) {
      awaited_ = place;
      return false;
    }
  }
  return true;
}

// Sequentially consistent: whoever goes to sleep says so and looks once more,
// and here it is looked for sleepers after the store.
void ShmOperation::Publish(Counter counter, uint64_t pieces) {
  lines_[me_]->*counter = pieces;
  for (size_t place = 0; place < lines_.size(); ++place) {
    if (place == me_) continue;
    backend_->wake_(local_ranks_[place]);
  }
}

ShmSlots ShmOperation::SlotsOf(uint64_t piece) const {
  ShmSlots slots(lines_.size());
  for (size_t place = 0; place < slots.size(); ++place) {
    if (!pieces_->Gives(place)) continue;
    const uint32_t slot = lines_[place]->slots[piece % ShmArena::kSlots].load(
        std::memory_order_relaxed);
    slots[place] = backend_->arena_.slot(local_ranks_[place], slot);
  }
  return slots;
}

bool ShmOperation::GiveOne() {
  if (given_ == pieces_->count()) return false;
  const uint64_t piece = first_ + given_;
  // The line says where the last few pieces lie: none is forgotten that
  // somebody has not read.
  if (piece >= ShmArena::kSlots &&
      !AllBeyond(piece - ShmArena::kSlots, &ShmLine::done,
                 [](size_t) { return true; })) {
    return false;
  }
  if (pieces_->Gives(me_)) {
    const int slot = backend_->FreeSlot();
    if (slot < 0) return false;
    pieces_->Give(given_, backend_->arena_.slot(local_ranks_[me_],
                                                static_cast<size_t>(slot)));
    lines_[me_]->slots[piece % ShmArena::kSlots].store(
        static_cast<uint32_t>(slot), std::memory_order_relaxed);
    backend_->lent_.push_back(
        {static_cast<uint32_t>(slot), piece, {lines_.begin(), lines_.end()}});
  }
  ++given_;
  stream_->given = piece + 1;
  Publish(&ShmLine::given, piece + 1);
  return true;
}

bool ShmOperation::TakeOne() {
  const uint64_t piece = first_ + taken_;
  if (taken_ == given_ || stream_->reduced != piece) return false;
  const bool last = !pieces_->has_results();
  if (last && stream_->done != piece) return false;
  if (!AllBeyond(piece, &ShmLine::given,
                 [this](size_t place) { return pieces_->Gives(place); })) {
    return false;
  }
  pieces_->Take(taken_, SlotsOf(piece));
  ++taken_;
  stream_->reduced = piece + 1;
  if (last) {
    ++fetched_;
    stream_->done = piece + 1;
    lines_[me_]->reduced.store(piece + 1, std::memory_order_relaxed);
    Publish(&ShmLine::done, piece + 1);
  } else {
    Publish(&ShmLine::reduced, piece + 1);
  }
  return true;
}

bool ShmOperation::FetchOne() {
  const uint64_t piece = first_ + fetched_;
  if (fetched_ == taken_ || stream_->done != piece) return false;
  if (!AllBeyond(piece, &ShmLine::reduced, [](size_t) { return true; })) {
    return false;
  }
  pieces_->Fetch(fetched_, SlotsOf(piece));
  ++fetched_;
  stream_->done = piece + 1;
  Publish(&ShmLine::done, piece + 1);
  return true;
}

ShmBackend::ShmBackend(const ShmArena& arena, std::vector<int> node, int rank,
                       Wake wake)
    : arena_(arena),
      node_(std::move(node)),
      rank_(rank),
      wake_(std::move(wake)) {
  for (uint32_t slot = 0; slot < ShmArena::kSlots; ++slot) {
    free_.push_back(slot);
  }
}

size_t ShmBackend::LocalRankOf(int rank) const {
  return static_cast<size_t>(
      std::lower_bound(node_.begin(), node_.end(), rank) - node_.begin());
}

int ShmBackend::FreeSlot() {
  for (auto lent = lent_.begin(); free_.empty() && lent != lent_.end();) {
    const bool read = std::all_of(
        lent->readers.begin(), lent->readers.end(), [&](const ShmLine* line) {
          return line->done.load(std::memory_order_acquire) > lent->piece;
        });
    if (read) free_.push_back(lent->slot);
    lent = read ? lent_.erase(lent) : std::next(lent);
  }
  if (free_.empty()) return -1;
  const uint32_t slot = free_.back();
  free_.pop_back();
  return static_cast<int>(slot);
}

bool ShmBackend::Serves(const OperationSpec& spec) const {
  if (spec.memory.kind == MemoryKind::kDevice) return false;
  if (spec.set < 0 || spec.set >= ShmArena::kSets) return false;
  const bool reduces =
      spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReducescatter;
  if (reduces && !IsReducible(spec.reduce.dtype, spec.reduce.op)) return false;
  const std::vector<int>& ranks = *spec.ranks;
  return ranks.size() > 1 &&
         std::includes(node_.begin(), node_.end(), ranks.begin(), ranks.end());
}

Status ShmBackend::Make(OperationSpec spec,
                        std::unique_ptr<Operation>* operation) {
  size_t me = 0;
  TF_HVD_RETURN_IF_ERROR(FindPlace(spec, rank_, &me));
  *operation = std::make_unique<ShmOperation>(this, std::move(spec), me);
  return Status::Ok();
}

}  // namespace tf_hvd

#include "runtime/transport/shm/operation.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/clock.h"
#include "base/counters.h"

namespace tf_hvd {
namespace {

// Bytes moved on this rank.
size_t BytesOf(const OperationSpec& spec) {
  const auto element =
      static_cast<int64_t>(Reduces(spec.kind) ? SizeOf(spec.reduce.dtype) : 1);
  int64_t bytes = 0;
  for (const Span& span : spec.spans) bytes += span.count * element;
  const auto sum = [](const std::vector<int64_t>& parts) {
    return std::accumulate(parts.begin(), parts.end(), int64_t{0});
  };
  bytes += std::max(sum(spec.send), sum(spec.receive));
  return static_cast<size_t>(bytes);
}

// Whether all ranks have equal sizes of data.
bool IsEven(const OperationSpec& spec) {
  if (spec.kind == OpKind::kAlltoall) {
    const int64_t part = spec.send[0];
    const auto is_it = [part](int64_t other) { return other == part; };
    return std::all_of(spec.send.begin(), spec.send.end(), is_it) &&
           std::all_of(spec.receive.begin(), spec.receive.end(), is_it);
  }
  if (spec.kind != OpKind::kAllgather) return true;
  return std::all_of(
      spec.spans.begin(), spec.spans.end(),
      [&](const Span& span) { return span.count == spec.spans[0].count; });
}

// The group of comparable costs, except for the size.
StoreChoice::Alike AlikeOf(const OperationSpec& spec) {
  if (!IsEven(spec)) return SlotWriter::kUnlike;
  return static_cast<StoreChoice::Alike>(spec.kind) * kDTypeCount +
         static_cast<StoreChoice::Alike>(spec.reduce.dtype) + 1;
}

uint32_t Since(int64_t begin_ns) {
  return static_cast<uint32_t>(
      std::clamp<int64_t>(NowNs() - begin_ns, 1, UINT32_MAX));
}

}  // namespace

ShmOperation::ShmOperation(ShmBackend* backend, OperationSpec spec, size_t me,
                           std::optional<ShmAcross> across)
    : backend_(backend),
      spec_(std::move(spec)),
      me_(me),
      across_(std::move(across)),
      plan_(across_.has_value()
                ? PlanAcross(spec_, me, *across_)
                : PlanInShm(spec_, me, backend->arena_.slot_bytes())),
      stream_(backend->StreamOf(spec_.set)),
      writer_(&stream_->writer),
      bytes_(BytesOf(spec_)),
      timed_(bytes_ >= SlotWriter::kLeastBytes),
      alike_(timed_ ? AlikeOf(spec_) : SlotWriter::kUnlike) {
  for (const int rank : *spec_.ranks) {
    local_ranks_.push_back(backend->LocalRankOf(rank));
    lines_.push_back(backend->arena_.line(spec_.set, local_ranks_.back()));
  }
  backend_->publishing_.push_back(this);
}

void ShmOperation::StopPublishing() {
  auto& publishing = backend_->publishing_;
  publishing.erase(std::remove(publishing.begin(), publishing.end(), this),
                   publishing.end());
}

Status ShmOperation::Progress(int64_t budget_ns, Poll* poll) {
  if (!begun_) {
    if (backend_->publishing_.front() != this) return Status::Ok();
    begun_ = true;
    first_ = stream_->published;
  }
  const int64_t until_ns = NowNs() + budget_ns;
  if (plan_->counted() && plan_->count() > 0) {
    poll->part =
        static_cast<double>(gathered_) / static_cast<double>(plan_->count());
  }
  while (true) {
    if (published_ == plan_->count() && plan_->counted()) StopPublishing();
    if (gathered_ == plan_->count()) {
      poll->done = true;
      return Status::Ok();
    }
    awaited_ = -1;
    // Received data is used while it is in the cache.
    const bool moved =
        ConsumeOne() || GatherOne() || CrossOne(until_ns) || PublishOne();
    if (!status_.ok()) return status_;
    if (!moved) break;
    const int64_t now_ns = NowNs();
    poll->Did(did_, now_ns);
    if (now_ns >= until_ns) return Status::Ok();
  }
  poll->awaited = awaited_;
  return Status::Ok();
}

template <typename Asked>
bool ShmOperation::AllBeyond(uint64_t piece, Counter counter,
                             const Asked& asked) {
  for (size_t place = 0; place < lines_.size(); ++place) {
    if (place == me_ || !asked(place)) continue;
    if ((lines_[place]->*counter).load(std::memory_order_acquire) <= piece) {
      awaited_ = (*spec_.ranks)[place];
      return false;
    }
  }
  Count(Counted::kLinesRead, lines_.size() - 1);
  return true;
}

// Sequentially consistent: a rank that goes to sleep announces it and checks
// once more, and here sleepers are checked after the store.
void ShmOperation::Advance(Counter counter, uint64_t pieces) {
  lines_[me_]->*counter = pieces;
  Count(Counted::kLinesWritten);
  for (size_t place = 0; place < lines_.size(); ++place) {
    if (place == me_) continue;
    backend_->wake_(local_ranks_[place]);
  }
}

ShmSlots ShmOperation::SlotsOf(uint64_t piece) const {
  ShmSlots slots(lines_.size());
  for (size_t place = 0; place < slots.size(); ++place) {
    if (!plan_->Publishes(place)) continue;
    const size_t slot = lines_[place]->slots[piece % ShmArena::kSlots].load(
        std::memory_order_relaxed);
    slots[place] = backend_->arena_.slot(local_ranks_[place], slot);
  }
  return slots;
}

bool ShmOperation::PublishOne() {
  if (published_ == plan_->count()) return false;
  const uint64_t piece = first_ + published_;
  // The line has the slots of the last few pieces: none is overwritten that
  // some rank has not read.
  if (piece >= ShmArena::kSlots &&
      !AllBeyond(piece - ShmArena::kSlots, &ProgressLine::done,
                 [](size_t) { return true; })) {
    return false;
  }
  if (plan_->Publishes(me_)) {
    const int slot = backend_->FreeSlot();
    if (slot < 0) return false;
    if (!timed_) Count(Counted::kLinesWritten, LinesOf(bytes_));
    writer_->Publishes(piece, alike_, me_, lines_);
    plan_->Publish(
        published_,
        backend_->arena_.slot(local_ranks_[me_], static_cast<size_t>(slot)),
        writer_);
    lines_[me_]->slots[piece % ShmArena::kSlots].store(
        static_cast<uint8_t>(slot), std::memory_order_relaxed);
    backend_->in_use_.push_back(
        {static_cast<uint32_t>(slot), piece, {lines_.begin(), lines_.end()}});
  }
  did_ = Phase::kPack;
  ++published_;
  stream_->published = piece + 1;
  Advance(&ProgressLine::published, piece + 1);
  return true;
}

bool ShmOperation::ConsumeOne() {
  const uint64_t piece = first_ + consumed_;
  if (consumed_ == published_ || stream_->consumed != piece) return false;
  const bool last = !plan_->has_results();
  // Other ranks assume that pieces are reduced, and done, in their order.
  if (!across_.has_value() && stream_->reduced != piece) return false;
  if (last && stream_->done != piece) return false;
  if (!AllBeyond(piece, &ProgressLine::published,
                 [this](size_t place) { return plan_->Publishes(place); })) {
    return false;
  }
  if (!timed_) {
    Count(Counted::kLinesRead, (lines_.size() - 1) * LinesOf(bytes_));
  }
  const ShmSlots slots = SlotsOf(piece);
  writer_->Consumes(piece);
  const int64_t begin_ns = timed_ ? NowNs() : 0;
  plan_->Consume(consumed_, slots, writer_);
  const uint32_t took_ns = timed_ ? Since(begin_ns) : 0;
  writer_->Consumed(took_ns);
  lines_[me_]->consume_ns[piece % ShmArena::kSlots].store(
      took_ns, std::memory_order_relaxed);
  did_ = Reduces(spec_.kind) ? Phase::kReduce : Phase::kUnpack;
  ++consumed_;
  stream_->consumed = piece + 1;
  if (last) {
    ++gathered_;
    stream_->reduced = stream_->done = piece + 1;
    lines_[me_]->reduced.store(piece + 1, std::memory_order_relaxed);
    Advance(&ProgressLine::done, piece + 1);
  } else if (across_.has_value()) {
    SetOut(piece, slots);
  } else {
    PublishReduced(piece);
  }
  return true;
}

void ShmOperation::PublishReduced(uint64_t piece) {
  stream_->reduced = piece + 1;
  Advance(&ProgressLine::reduced, piece + 1);
}

void ShmOperation::SetOut(uint64_t piece, const ShmSlots& slots) {
  Crossing& one = crossing_.emplace_back(Crossing{piece, nullptr});
  OperationSpec exchange = across_->exchange;
  exchange.number = piece;
  if (plan_->Exchange(piece - first_, slots, &exchange)) {
    status_ = across_->by->Make(std::move(exchange), &one.operation);
  }
}

// All exchanges in progress move on; they end in order.
bool ShmOperation::CrossOne(int64_t until_ns) {
  did_ = Phase::kExchange;
  bool moved = false;
  for (Crossing& one : crossing_) {
    if (one.operation == nullptr) continue;
    Poll poll;
    status_ = one.operation->Progress(std::max<int64_t>(until_ns - NowNs(), 0),
                                      &poll);
    if (!status_.ok()) return false;
    moved |= poll.moved || poll.done;
    if (poll.done) {
      one.operation.reset();
    } else if (awaited_ < 0) {
      awaited_ = poll.awaited;
    }
  }
  while (!crossing_.empty() && crossing_.front().operation == nullptr &&
         stream_->reduced == crossing_.front().piece) {
    PublishReduced(crossing_.front().piece);
    crossing_.pop_front();
    moved = true;
  }
  return moved;
}

bool ShmOperation::GatherOne() {
  const uint64_t piece = first_ + gathered_;
  if (gathered_ == consumed_ || stream_->done != piece) return false;
  if (stream_->reduced <= piece) return false;
  if (!AllBeyond(piece, &ProgressLine::reduced, [](size_t) { return true; })) {
    return false;
  }
  const int64_t begin_ns = timed_ ? NowNs() : 0;
  plan_->Gather(gathered_, SlotsOf(piece));
  lines_[me_]->gather_ns[piece % ShmArena::kSlots].store(
      timed_ ? Since(begin_ns) : 0, std::memory_order_relaxed);
  did_ = Phase::kUnpack;
  ++gathered_;
  stream_->done = piece + 1;
  Advance(&ProgressLine::done, piece + 1);
  return true;
}

}  // namespace tf_hvd

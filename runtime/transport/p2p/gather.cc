#include "runtime/transport/p2p/gather.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

namespace tf_hvd {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// The maximum number of bytes copied at once.
constexpr int64_t kBlock = int64_t{256} << 10;
// Pieces of a broadcast that a rank has in transit to or from one neighbour.
constexpr size_t kWindow = 4;
// If the spans of a group are shorter than this on average they are packed,
// unless that takes too much memory.
constexpr size_t kShortSpanBytes = size_t{64} << 10;
constexpr size_t kMostPackedBytes = size_t{8} << 20;

// A place in the tree of a broadcast; all numbers are ranks.
struct BroadcastPlace {
  bool is_root = false;
  int parent = 0;
  std::vector<int> children;
};

BroadcastPlace PlaceInBroadcast(const RankGroup& group, size_t root,
                                bool chain) {
  const size_t size = group.size();
  // Places are counted starting from the root.
  const auto rank_at = [&](size_t place) {
    return group.ranks[(root + place) % size];
  };
  const size_t me = (group.me + size - root) % size;
  BroadcastPlace place;
  place.is_root = me == 0;
  if (chain) {
    if (me > 0) place.parent = rank_at(me - 1);
    if (me + 1 < size) place.children.push_back(rank_at(me + 1));
    return place;
  }
  // Binomial: the parent's number is this one's without its lowest set bit. The
  // child with the deepest subtree comes first.
  if (me > 0) place.parent = rank_at(me & (me - 1));
  size_t bit = 1;
  while (bit < size && (me & bit) == 0) bit <<= 1;
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (me + bit < size) place.children.push_back(rank_at(me + bit));
  }
  return place;
}

// One rank's part of a broadcast in pieces. Pieces that extend over several
// spans are packed for sending.
class Broadcaster {
 public:
  Broadcaster(BroadcastPlace place, const SpanList& spans,
              const Staging& staging)
      : place_(std::move(place)),
        spans_(spans),
        pieces_((static_cast<size_t>(spans.count()) + kPieceBytes - 1) /
                kPieceBytes) {
    if (spans.spans().size() > 1) {
      staging_ = staging(std::min(pieces_, kPacked) * kPieceBytes);
    }
  }

  // Writes the steps of the next piece; false when all are written.
  bool Next(P2PPlan* plan) {
    const size_t piece = next_++;
    if (piece == 0) {
      for (size_t i = 0; i < std::min(pieces_, kWindow); ++i) {
        Expect(i, plan);
      }
    }
    if (piece < pieces_) {
      const size_t lane = piece % kWindow;
      plan->Wait(lane);
      plan->Wait(kWindow + lane);
      if (piece + kWindow < pieces_) Expect(piece + kWindow, plan);
      PassOn(piece, plan);
      return true;
    }
    for (size_t lane = 0; lane < kWindow; ++lane) {
      plan->Wait(kWindow + lane);
    }
    return false;
  }

 private:
  // A packed piece is received while the previous one of its lane is sent.
  static constexpr size_t kPacked = 2 * kWindow;

  int64_t Begin(size_t piece) const {
    return static_cast<int64_t>(piece * kPieceBytes);
  }
  int64_t Count(size_t piece) const {
    return std::min(static_cast<int64_t>(kPieceBytes),
                    spans_.count() - Begin(piece));
  }
  size_t Bytes(size_t piece) const { return static_cast<size_t>(Count(piece)); }

  // Null if the piece extends over several spans.
  char* Direct(size_t piece) const {
    // The root only reads, so it may send from const memory.
    return place_.is_root ? const_cast<char*>(
                                spans_.DirectInput(Begin(piece), Count(piece)))
                          : spans_.DirectOutput(Begin(piece), Count(piece));
  }
  char* Packed(size_t piece) const {
    return staging_ + piece % kPacked * kPieceBytes;
  }

  void Expect(size_t piece, P2PPlan* plan) const {
    if (place_.is_root) return;
    char* const direct = Direct(piece);
    plan->Receive(piece % kWindow, place_.parent,
                  direct != nullptr ? direct : Packed(piece), Bytes(piece));
  }
  void PassOn(size_t piece, P2PPlan* plan) const {
    const int64_t begin = Begin(piece);
    const int64_t count = Count(piece);
    char* const direct = Direct(piece);
    char* const data = direct != nullptr ? direct : Packed(piece);
    const bool packs = direct == nullptr;
    const SpanList* const spans = &spans_;
    if (packs && place_.is_root && !place_.children.empty()) {
      plan->Do([=] { spans->Pack(begin, count, data); });
    }
    for (const int child : place_.children) {
      plan->Send(kWindow + piece % kWindow, child, data, Bytes(piece));
    }
    if (packs && !place_.is_root) {
      plan->Do([=] { spans->Unpack(begin, count, data); });
    }
  }

  const BroadcastPlace place_;
  const SpanList& spans_;
  const size_t pieces_;
  char* staging_ = nullptr;
  size_t next_ = 0;
};

size_t BytesOf(const RankRuns& runs, size_t place) {
  return static_cast<size_t>(runs.CountOf(place));
}

// Whether sending each span of a group separately would take many short
// messages.
bool IsWorthPacking(const RankRuns& runs) {
  const auto bytes = static_cast<size_t>(runs.list().count());
  const size_t spans = runs.list().spans().size();
  return runs.each() > 1 && bytes <= kMostPackedBytes &&
         bytes / spans < kShortSpanBytes;
}

void PackOwn(const RankGroup& group, const RankRuns& runs, char* to,
             P2PPlan* plan) {
  const int64_t begin = runs.BeginOf(group.me);
  plan->Do(runs.CountOf(group.me), kBlock,
           [&runs, begin, to](int64_t at, int64_t count) {
             runs.list().Pack(begin + at, count, to + at);
           });
}

// Copies from the original memory; if that is also the destination, other ranks
// may be reading it.
void CopyOwn(const RankGroup& group, const RankRuns& runs, P2PPlan* plan) {
  const int64_t begin = runs.BeginOf(group.me);
  plan->Do(runs.CountOf(group.me), kBlock,
           [&runs, begin](int64_t at, int64_t count) {
             runs.list().Copy(begin + at, count);
           });
}

void UnpackRun(const RankRuns& runs, size_t place, const char* from,
               P2PPlan* plan) {
  const int64_t begin = runs.BeginOf(place);
  plan->Do(runs.CountOf(place), kBlock,
           [&runs, begin, from](int64_t at, int64_t count) {
             runs.list().Unpack(begin + at, count, from + at);
           });
}

}  // namespace

void BruckGather(const RankGroup& group, const std::vector<size_t>& offsets,
                 char* blocks, P2PPlan* plan) {
  constexpr size_t kArriving = 0;
  constexpr size_t kLeaving = 1;
  for (size_t have = 1; have < group.size(); have *= 2) {
    // This rank has the blocks [0, have). The rank `have` before it needs them;
    // the rank `have` after it sends those that follow.
    const size_t count = std::min(have, group.size() - have);
    plan->Receive(kArriving, group.ranks[group.Next(have)],
                  blocks + offsets[have],
                  offsets[have + count] - offsets[have]);
    plan->Send(kLeaving, group.ranks[group.Previous(have)], blocks,
               offsets[count]);
    plan->Wait(kArriving);
  }
  plan->Wait(kLeaving);
}

void ShortGather(const RankGroup& group, const RankRuns& runs,
                 const Staging& staging, P2PPlan* plan) {
  std::vector<size_t> offsets(group.size() + 1);
  for (size_t i = 0; i < group.size(); ++i) {
    offsets[i + 1] = offsets[i] + BytesOf(runs, group.Next(i));
  }
  char* const blocks = staging(offsets[group.size()]);
  PackOwn(group, runs, blocks, plan);
  BruckGather(group, offsets, blocks, plan);
  CopyOwn(group, runs, plan);
  for (size_t i = 1; i < group.size(); ++i) {
    UnpackRun(runs, group.Next(i), blocks + offsets[i], plan);
  }
}

void DirectGather(const RankGroup& group, const RankRuns& runs,
                  const Staging& staging, P2PPlan* plan) {
  constexpr size_t kAll = 0;
  const bool packs = IsWorthPacking(runs);
  char* const blocks =
      packs ? staging(static_cast<size_t>(runs.list().count())) : nullptr;
  const auto block_of = [&](size_t place) {
    return blocks + runs.BeginOf(place);
  };
  // The messages that carry a rank's run.
  const auto for_each_message = [&](size_t place, const auto& visit) {
    if (packs) {
      return visit({block_of(place), block_of(place), runs.CountOf(place)});
    }
    const Span* const spans = &runs.list().spans()[place * runs.each()];
    for (size_t i = 0; i < runs.each(); ++i) visit(spans[i]);
  };
  if (packs) PackOwn(group, runs, block_of(group.me), plan);
  // Each rank starts with a different one, so that no rank is the first for
  // all.
  for (size_t step = 1; step < group.size(); ++step) {
    const size_t from = group.Previous(step);
    for_each_message(from, [&](const Span& span) {
      plan->Receive(kAll, group.ranks[from], span.output,
                    static_cast<size_t>(span.count));
    });
  }
  for (size_t step = 1; step < group.size(); ++step) {
    const int to = group.ranks[group.Next(step)];
    for_each_message(group.me, [&](const Span& span) {
      plan->Send(kAll, to, span.input, static_cast<size_t>(span.count));
    });
  }
  CopyOwn(group, runs, plan);
  plan->Wait(kAll);
  for (size_t step = 1; packs && step < group.size(); ++step) {
    const size_t from = group.Previous(step);
    UnpackRun(runs, from, block_of(from), plan);
  }
}

void BroadcastFrom(const RankGroup& group, size_t root, const SpanList& spans,
                   uint64_t of_pieces, const Staging& staging, P2PPlan* plan) {
  const auto pieces = static_cast<uint64_t>(spans.count()) / kPieceBytes;
  const bool chain = std::max(pieces, of_pieces) >= group.size();
  if (root == group.me) {
    plan->Do(spans.count(), kBlock, [&spans](int64_t begin, int64_t count) {
      spans.Copy(begin, count);
    });
  }
  auto part = std::make_shared<Broadcaster>(
      PlaceInBroadcast(group, root, chain), spans, staging);
  plan->ThenAsk([part](P2PPlan* more) { return part->Next(more); });
}

}  // namespace tf_hvd

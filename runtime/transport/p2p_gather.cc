#include "runtime/transport/p2p_gather.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tf_hvd {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// Pieces of a broadcast that a rank has under way to or from one neighbour.
constexpr size_t kWindow = 4;

// A place in the tree of a broadcast; all numbers are ranks.
struct BroadcastPlace {
  bool is_root = false;
  int parent = 0;
  std::vector<int> children;
};

BroadcastPlace PlaceInBroadcast(const RankGroup& group, size_t root,
                                bool chain) {
  const size_t size = group.size();
  // Places counted from the root on.
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
  // Binomial: the parent's number lacks one's own lowest bit. The child with
  // the deepest subtree comes first.
  if (me > 0) place.parent = rank_at(me & (me - 1));
  size_t bit = 1;
  while (bit < size && (me & bit) == 0) bit <<= 1;
  for (bit >>= 1; bit > 0; bit >>= 1) {
    if (me + bit < size) place.children.push_back(rank_at(me + bit));
  }
  return place;
}

// One rank's part of a broadcast in pieces.
class Broadcaster {
 public:
  Broadcaster(BroadcastPlace place, char* data, size_t bytes)
      : place_(std::move(place)),
        data_(data),
        bytes_(bytes),
        pieces_((bytes + kPieceBytes - 1) / kPieceBytes) {}

  // The steps of the next piece; false when all are written.
  bool Next(Schedule* schedule) {
    const size_t piece = next_++;
    if (piece == 0) {
      for (size_t i = 0; i < std::min(pieces_, kWindow); ++i) {
        Expect(i, schedule);
      }
    }
    if (piece < pieces_) {
      const size_t lane = piece % kWindow;
      schedule->Wait(lane);
      if (piece + kWindow < pieces_) Expect(piece + kWindow, schedule);
      schedule->Wait(kWindow + lane);
      for (const int child : place_.children) {
        schedule->Send(kWindow + lane, child, data_ + piece * kPieceBytes,
                       Size(piece));
      }
      return true;
    }
    for (size_t lane = 0; lane < kWindow; ++lane) {
      schedule->Wait(kWindow + lane);
    }
    return false;
  }

 private:
  size_t Size(size_t piece) const {
    return std::min(kPieceBytes, bytes_ - piece * kPieceBytes);
  }
  void Expect(size_t piece, Schedule* schedule) const {
    if (place_.is_root) return;
    schedule->Receive(piece % kWindow, place_.parent,
                      data_ + piece * kPieceBytes, Size(piece));
  }

  const BroadcastPlace place_;
  char* const data_;
  const size_t bytes_;
  const size_t pieces_;
  size_t next_ = 0;
};

}  // namespace

void BruckGather(const RankGroup& group, const std::vector<size_t>& offsets,
                 char* blocks, Schedule* schedule) {
  constexpr size_t kArriving = 0;
  constexpr size_t kLeaving = 1;
  for (size_t have = 1; have < group.size(); have *= 2) {
    // I hold the blocks [0, have); the rank `have` before me wants them, the
    // one `have` behind me gives me those that continue mine.
    const size_t count = std::min(have, group.size() - have);
    schedule->Receive(kArriving, group.ranks[group.Next(have)],
                      blocks + offsets[have],
                      offsets[have + count] - offsets[have]);
    schedule->Send(kLeaving, group.ranks[group.Previous(have)], blocks,
                   offsets[count]);
    schedule->Wait(kArriving);
  }
  schedule->Wait(kLeaving);
}

void DirectGather(const RankGroup& group, const void* mine,
                  const std::vector<size_t>& offsets, char* blocks,
                  Schedule* schedule) {
  constexpr size_t kAll = 0;
  // Each rank begins with another one, so that no rank is everybody's first.
  for (size_t step = 1; step < group.size(); ++step) {
    const size_t from = group.Previous(step);
    schedule->Receive(kAll, group.ranks[from], blocks + offsets[from],
                      offsets[from + 1] - offsets[from]);
  }
  const size_t my_bytes = offsets[group.me + 1] - offsets[group.me];
  for (size_t step = 1; step < group.size(); ++step) {
    schedule->Send(kAll, group.ranks[group.Next(step)], mine, my_bytes);
  }
  schedule->Copy(blocks + offsets[group.me], mine, my_bytes);
  schedule->Wait(kAll);
}

void BroadcastFrom(const RankGroup& group, size_t root, char* data,
                   size_t bytes, uint64_t of_pieces, Schedule* schedule) {
  const bool chain =
      std::max<uint64_t>(bytes / kPieceBytes, of_pieces) >= group.size();
  auto part = std::make_shared<Broadcaster>(
      PlaceInBroadcast(group, root, chain), data, bytes);
  schedule->ThenAsk([part](Schedule* more) { return part->Next(more); });
}

}  // namespace tf_hvd

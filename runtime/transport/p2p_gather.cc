#include "runtime/transport/p2p_gather.h"

#include <algorithm>

namespace tf_hvd {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;
// Pieces of a broadcast that a rank has under way to or from one neighbour.
constexpr size_t kWindow = 4;

// A place in the tree of a broadcast; all numbers are ranks.
struct SpreadPlace {
  bool is_root = false;
  int parent = 0;
  std::vector<int> children;
};

SpreadPlace PlaceInSpread(const RankGroup& group, size_t root, bool chain) {
  const size_t size = group.size();
  // Places counted from the root on.
  const auto rank_at = [&](size_t place) {
    return group.ranks[(root + place) % size];
  };
  const size_t me = (group.me + size - root) % size;
  SpreadPlace place;
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
class Spread {
 public:
  Spread(Flight* flight, SpreadPlace place, char* data, size_t bytes)
      : flight_(flight), place_(std::move(place)), data_(data), bytes_(bytes) {}

  Status Run() {
    const size_t pieces = (bytes_ + kPieceBytes - 1) / kPieceBytes;
    for (size_t piece = 0; piece < std::min(pieces, kWindow); ++piece) {
      TF_HVD_RETURN_IF_ERROR(Expect(piece));
    }
    for (size_t piece = 0; piece < pieces; ++piece) {
      const size_t lane = piece % kWindow;
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(lane));
      if (piece + kWindow < pieces) {
        TF_HVD_RETURN_IF_ERROR(Expect(piece + kWindow));
      }
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(kWindow + lane));
      for (const int child : place_.children) {
        TF_HVD_RETURN_IF_ERROR(flight_->Send(
            kWindow + lane, child, data_ + piece * kPieceBytes, Size(piece)));
      }
    }
    for (size_t lane = 0; lane < kWindow; ++lane) {
      TF_HVD_RETURN_IF_ERROR(flight_->Wait(kWindow + lane));
    }
    return Status::Ok();
  }

 private:
  size_t Size(size_t piece) const {
    return std::min(kPieceBytes, bytes_ - piece * kPieceBytes);
  }
  Status Expect(size_t piece) {
    if (place_.is_root) return Status::Ok();
    return flight_->Receive(piece % kWindow, place_.parent,
                            data_ + piece * kPieceBytes, Size(piece));
  }

  Flight* const flight_;
  const SpreadPlace place_;
  char* const data_;
  const size_t bytes_;
};

}  // namespace

Status BruckGather(Flight* flight, const RankGroup& group,
                   const std::vector<size_t>& offsets, char* blocks) {
  constexpr size_t kArriving = 0;
  constexpr size_t kLeaving = 1;
  for (size_t have = 1; have < group.size(); have *= 2) {
    // I hold the blocks [0, have); the rank `have` before me wants them, the
    // one `have` behind me gives me those that continue mine.
    const size_t count = std::min(have, group.size() - have);
    TF_HVD_RETURN_IF_ERROR(flight->Receive(
        kArriving, group.ranks[group.Next(have)], blocks + offsets[have],
        offsets[have + count] - offsets[have]));
    TF_HVD_RETURN_IF_ERROR(flight->Send(
        kLeaving, group.ranks[group.Previous(have)], blocks, offsets[count]));
    TF_HVD_RETURN_IF_ERROR(flight->Wait(kArriving));
  }
  return flight->Wait(kLeaving);
}

Status DirectGather(Flight* flight, const RankGroup& group, const void* mine,
                    const std::vector<size_t>& offsets, char* blocks) {
  constexpr size_t kAll = 0;
  // Each rank begins with another one, so that no rank is everybody's first.
  for (size_t step = 1; step < group.size(); ++step) {
    const size_t from = group.Previous(step);
    TF_HVD_RETURN_IF_ERROR(flight->Receive(kAll, group.ranks[from],
                                           blocks + offsets[from],
                                           offsets[from + 1] - offsets[from]));
  }
  const size_t my_bytes = offsets[group.me + 1] - offsets[group.me];
  for (size_t step = 1; step < group.size(); ++step) {
    TF_HVD_RETURN_IF_ERROR(
        flight->Send(kAll, group.ranks[group.Next(step)], mine, my_bytes));
  }
  TF_HVD_RETURN_IF_ERROR(
      flight->Copy(blocks + offsets[group.me], mine, my_bytes));
  return flight->Wait(kAll);
}

Status SpreadFrom(Flight* flight, const RankGroup& group, size_t root,
                  char* data, size_t bytes) {
  const bool chain = bytes / kPieceBytes >= group.size();
  return Spread(flight, PlaceInSpread(group, root, chain), data, bytes).Run();
}

}  // namespace tf_hvd

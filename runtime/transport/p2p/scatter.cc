#include "runtime/transport/p2p/scatter.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace tf_hvd {
namespace {

// What arrives together for one piece, of all ranks.
constexpr size_t kPieceBytes = size_t{1} << 20;
// A message shorter than this costs as much as one of this length.
constexpr size_t kSliceBytes = size_t{16} << 10;

// One rank's part of a reducescatter.
class Scatter {
 public:
  Scatter(const RankGroup& group, const RankRuns& runs,
          const ReduceOptions& options, const Staging& staging)
      : group_(group),
        runs_(runs),
        options_(options),
        element_(runs.list().element_bytes()) {
    const size_t wanted = std::max(kPieceBytes / group.size(), kSliceBytes);
    const int64_t most = runs.Longest();
    piece_count_ = std::min(static_cast<int64_t>(wanted / element_),
                            std::max<int64_t>(most, 1));
    pieces_ = (most + piece_count_ - 1) / piece_count_;
    // What arrives; of groups also what is packed, and a result.
    const size_t places = runs.each() > 1 ? 2 * group.size() + 1 : group.size();
    slot_bytes_ = places * PieceBytes();
    staging_ = staging(kSlots * slot_bytes_);
  }

  // The steps of the next piece; false when all are written.
  bool Next(P2PPlan* plan) {
    const int64_t piece = next_++ - 1;
    if (piece + 1 < pieces_) Post(piece + 1, plan);
    if (piece >= 0 && piece < pieces_) Reduce(piece, plan);
    return piece + 1 < pieces_;
  }

 private:
  static constexpr size_t kSlots = 2;

  size_t PieceBytes() const {
    return static_cast<size_t>(piece_count_) * element_;
  }
  size_t SlotOf(int64_t piece) const {
    return static_cast<size_t>(piece) % kSlots;
  }
  // Where among all runs a piece of a place's run begins.
  int64_t Begin(int64_t piece, size_t place) const {
    return std::min(runs_.BeginOf(place) + piece * piece_count_,
                    runs_.BeginOf(place + 1));
  }
  int64_t Count(int64_t piece, size_t place) const {
    return Begin(piece + 1, place) - Begin(piece, place);
  }
  char* Incoming(int64_t piece, size_t from) const {
    return staging_ + SlotOf(piece) * slot_bytes_ + from * PieceBytes();
  }
  char* Packed(int64_t piece, size_t place) const {
    return Incoming(piece, group_.size() + place);
  }
  // Where the result lies until it is unpacked.
  char* Reduced(int64_t piece) const {
    return Incoming(piece, 2 * group_.size());
  }
  // This rank's input for a place.
  const char* Mine(int64_t piece, size_t place, P2PPlan* plan) const {
    return InputOf(runs_.list(), Begin(piece, place), Count(piece, place),
                   Packed(piece, place), plan);
  }

  void Post(int64_t piece, P2PPlan* plan) const {
    const size_t lane = SlotOf(piece);
    const auto bytes = [&](size_t place) {
      return static_cast<size_t>(Count(piece, place)) * element_;
    };
    for (size_t step = 1; step < group_.size(); ++step) {
      const size_t from = group_.Previous(step);
      plan->Receive(lane, group_.ranks[from], Incoming(piece, from),
                    bytes(group_.me));
    }
    for (size_t step = 1; step < group_.size(); ++step) {
      const size_t to = group_.Next(step);
      plan->Send(lane, group_.ranks[to], Mine(piece, to, plan), bytes(to));
    }
  }

  void Reduce(int64_t piece, P2PPlan* plan) const {
    plan->Wait(SlotOf(piece));
    std::vector<const char*> inputs(group_.size());
    for (size_t place = 0; place < group_.size(); ++place) {
      inputs[place] = place == group_.me ? Mine(piece, place, plan)
                                         : Incoming(piece, place);
    }
    const int64_t begin = Begin(piece, group_.me);
    const int64_t count = Count(piece, group_.me);
    if (count == 0) return;
    char* const direct = runs_.list().DirectOutput(begin, count);
    char* const result = direct != nullptr ? direct : Reduced(piece);
    ReduceInOrder(options_, std::move(inputs), count, result, plan);
    if (direct != nullptr) return;
    plan->Do([list = &runs_.list(), begin, count, result] {
      list->Unpack(begin, count, result);
    });
  }

  const RankGroup& group_;
  const RankRuns& runs_;
  const ReduceOptions options_;
  const size_t element_;
  int64_t next_ = 0;
  int64_t piece_count_ = 0;  // elements; a part's last piece may have fewer
  int64_t pieces_ = 0;
  size_t slot_bytes_ = 0;
  char* staging_ = nullptr;
};

}  // namespace

void ExchangeAll(const RankGroup& group, const char* input,
                 const std::vector<size_t>& send_offsets, char* output,
                 const std::vector<size_t>& receive_offsets, P2PPlan* plan) {
  constexpr size_t kAll = 0;
  const auto size_at = [](const std::vector<size_t>& offsets, size_t place) {
    return offsets[place + 1] - offsets[place];
  };
  // Each rank begins with another one, so that no rank is everybody's first.
  for (size_t step = 1; step < group.size(); ++step) {
    const size_t from = group.Previous(step);
    plan->Receive(kAll, group.ranks[from], output + receive_offsets[from],
                  size_at(receive_offsets, from));
  }
  for (size_t step = 1; step < group.size(); ++step) {
    const size_t to = group.Next(step);
    plan->Send(kAll, group.ranks[to], input + send_offsets[to],
               size_at(send_offsets, to));
  }
  plan->Copy(output + receive_offsets[group.me], input + send_offsets[group.me],
             size_at(send_offsets, group.me));
  plan->Wait(kAll);
}

void ReduceScatterPieces(const RankGroup& group, const RankRuns& runs,
                         const ReduceOptions& options, const Staging& staging,
                         P2PPlan* plan) {
  auto scatter = std::make_shared<Scatter>(group, runs, options, staging);
  plan->ThenAsk([scatter](P2PPlan* more) { return scatter->Next(more); });
}

}  // namespace tf_hvd

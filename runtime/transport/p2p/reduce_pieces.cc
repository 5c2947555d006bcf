// Common code of ReduceLarge and ReduceScatterPieces: each rank receives the
// others' inputs for its slice of a piece and reduces the slice.
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "runtime/transport/p2p/allreduce.h"
#include "runtime/transport/p2p/scatter.h"

namespace tf_hvd {
namespace {

// Total bytes received for one piece, from all ranks.
constexpr size_t kPieceBytes = size_t{1} << 20;
// From this size on there are at least two pieces.
constexpr size_t kSplitBytes = size_t{256} << 10;
// A shorter message costs as much as one of this length.
constexpr size_t kSliceBytes = size_t{16} << 10;

// How the elements are divided.
struct Cut {
  int64_t pieces = 0;
  int64_t most = 0;  // maximum elements of a slice
  std::function<Range(int64_t piece, size_t place)> slice;
};

class PieceReducer {
 public:
  // `shares`: each rank receives all reduced slices, not only its own.
  PieceReducer(const RankGroup& group, const SpanList& spans,
               const ReduceOptions& options, Cut cut, bool shares,
               const Staging& staging);

  // Writes the steps of the next piece; false when all are written.
  bool Next(P2PPlan* plan);

 private:
  // A piece uses a slot from its posting until its results have arrived. One
  // piece is being reduced while the next is received and the previous one is
  // sent.
  static constexpr int64_t kSlots = 3;
  struct Slot {
    size_t contributions;  // lanes
    size_t results;
    char* incoming;  // one piece long each, with a place for each rank's slice
    char* packed;
    char* reduced;
  };

  Slot SlotOf(int64_t piece) const;
  size_t BytesOf(const Range& range) const;
  char* PlaceIn(char* area, size_t place) const;

  // This rank's input for a slice: in place, or packed by the plan.
  const char* Contribution(int64_t piece, size_t place, P2PPlan* plan) const;
  // The destination of a slice's result.
  char* ResultOf(int64_t piece, size_t place) const;

  void Post(int64_t piece, P2PPlan* plan) const;
  void Reduce(int64_t piece, P2PPlan* plan) const;
  void Finish(int64_t piece, P2PPlan* plan) const;

  const RankGroup& group_;
  const SpanList& spans_;
  const ReduceOptions options_;
  const Cut cut_;
  const bool shares_;
  const size_t slice_bytes_;  // maximum bytes of a slice
  char* const staging_;
  int64_t next_ = 0;
};

PieceReducer::PieceReducer(const RankGroup& group, const SpanList& spans,
                           const ReduceOptions& options, Cut cut, bool shares,
                           const Staging& staging)
    : group_(group),
      spans_(spans),
      options_(options),
      cut_(std::move(cut)),
      shares_(shares),
      slice_bytes_(static_cast<size_t>(cut_.most) * spans.element_bytes()),
      staging_(staging(static_cast<size_t>(kSlots) * 3 * group.size() *
                       slice_bytes_)) {}

PieceReducer::Slot PieceReducer::SlotOf(int64_t piece) const {
  const auto index = static_cast<size_t>(piece % kSlots);
  const size_t area = group_.size() * slice_bytes_;
  char* const memory = staging_ + index * 3 * area;
  return {2 * index, 2 * index + 1, memory, memory + area, memory + 2 * area};
}

size_t PieceReducer::BytesOf(const Range& range) const {
  return static_cast<size_t>(range.count()) * spans_.element_bytes();
}

char* PieceReducer::PlaceIn(char* area, size_t place) const {
  return area + place * slice_bytes_;
}

const char* PieceReducer::Contribution(int64_t piece, size_t place,
                                       P2PPlan* plan) const {
  const Range slice = cut_.slice(piece, place);
  return InputOf(spans_, slice.begin, slice.count(),
                 PlaceIn(SlotOf(piece).packed, place), plan);
}

char* PieceReducer::ResultOf(int64_t piece, size_t place) const {
  const Range slice = cut_.slice(piece, place);
  char* const direct = spans_.DirectOutput(slice.begin, slice.count());
  return direct != nullptr ? direct : PlaceIn(SlotOf(piece).reduced, place);
}

void PieceReducer::Post(int64_t piece, P2PPlan* plan) const {
  const Slot slot = SlotOf(piece);
  const size_t my_bytes = BytesOf(cut_.slice(piece, group_.me));
  for (size_t step = 1; step < group_.size(); ++step) {
    const size_t from = group_.Previous(step);
    plan->Receive(slot.contributions, group_.ranks[from],
                  PlaceIn(slot.incoming, from), my_bytes);
  }
  for (size_t step = 1; step < group_.size(); ++step) {
    const size_t to = group_.Next(step);
    plan->Send(slot.contributions, group_.ranks[to],
               Contribution(piece, to, plan), BytesOf(cut_.slice(piece, to)));
  }
}

void PieceReducer::Reduce(int64_t piece, P2PPlan* plan) const {
  const Slot slot = SlotOf(piece);
  // This rank's messages have been sent as well: from here on, outputs that
  // share the inputs' memory may be written.
  plan->Wait(slot.contributions);
  const Range mine = cut_.slice(piece, group_.me);
  std::vector<const char*> inputs(group_.size());
  for (size_t place = 0; place < group_.size(); ++place) {
    inputs[place] = place == group_.me ? Contribution(piece, place, plan)
                                       : PlaceIn(slot.incoming, place);
  }
  char* const result = ResultOf(piece, group_.me);
  ReduceInOrder(options_, std::move(inputs), mine.count(), result, plan);
  if (!shares_) return;
  for (size_t step = 1; step < group_.size(); ++step) {
    const size_t from = group_.Previous(step);
    plan->Receive(slot.results, group_.ranks[from], ResultOf(piece, from),
                  BytesOf(cut_.slice(piece, from)));
  }
  for (size_t step = 1; step < group_.size(); ++step) {
    plan->Send(slot.results, group_.ranks[group_.Next(step)], result,
               BytesOf(mine));
  }
}

void PieceReducer::Finish(int64_t piece, P2PPlan* plan) const {
  const Slot slot = SlotOf(piece);
  plan->Wait(slot.results);
  for (size_t place = 0; place < group_.size(); ++place) {
    if (!shares_ && place != group_.me) continue;
    const Range slice = cut_.slice(piece, place);
    if (spans_.DirectOutput(slice.begin, slice.count()) != nullptr) continue;
    plan->Do([=, spans = &spans_, from = PlaceIn(slot.reduced, place)] {
      spans->Unpack(slice.begin, slice.count(), from);
    });
  }
}

// Between two ranks, messages match in the order of their posting: this order
// is the same on all ranks. Turn 0 posts the first piece. Turn i + 1 reduces
// piece i, while the next is received and the previous one is sent.
bool PieceReducer::Next(P2PPlan* plan) {
  const int64_t piece = next_++ - 1;
  if (piece < 0) {
    Post(0, plan);
  } else if (piece < cut_.pieces) {
    if (piece + 1 >= kSlots) Finish(piece + 1 - kSlots, plan);
    if (piece + 1 < cut_.pieces) Post(piece + 1, plan);
    Reduce(piece, plan);
  } else {
    for (int64_t left = std::max<int64_t>(cut_.pieces + 1 - kSlots, 0);
         left < cut_.pieces; ++left) {
      Finish(left, plan);
    }
    return false;
  }
  return true;
}

}  // namespace

void ReduceLarge(const RankGroup& group, const SpanList& spans,
                 const ReduceOptions& options, const Staging& staging,
                 P2PPlan* plan) {
  const auto ranks = static_cast<int64_t>(group.size());
  const int64_t count = spans.count();
  const size_t element = spans.element_bytes();
  const size_t wanted = std::max(kPieceBytes, group.size() * kSliceBytes);
  const auto most = static_cast<int64_t>(wanted / element);
  int64_t pieces = (count + most - 1) / most;
  if (static_cast<size_t>(count) * element >= kSplitBytes) {
    pieces = std::max<int64_t>(pieces, 2);
  }
  const int64_t each = (count + pieces - 1) / pieces;
  Cut cut;
  cut.pieces = (count + each - 1) / each;
  cut.most = (each + ranks - 1) / ranks;
  cut.slice = [=](int64_t piece, size_t place) -> Range {
    const int64_t begin = piece * each;
    const int64_t here = std::min(each, count - begin);
    const auto index = static_cast<int64_t>(place);
    return {begin + here * index / ranks, begin + here * (index + 1) / ranks};
  };
  auto reducer = std::make_shared<PieceReducer>(
      group, spans, options, std::move(cut), /*shares=*/true, staging);
  plan->ThenAsk([reducer](P2PPlan* more) { return reducer->Next(more); });
}

void ReduceScatterPieces(const RankGroup& group, const RankRuns& runs,
                         const ReduceOptions& options, const Staging& staging,
                         P2PPlan* plan) {
  const size_t wanted = std::max(kPieceBytes / group.size(), kSliceBytes);
  const size_t element = runs.list().element_bytes();
  const int64_t longest = runs.Longest();
  Cut cut;
  cut.most = std::min(static_cast<int64_t>(wanted / element),
                      std::max<int64_t>(longest, 1));
  cut.pieces = (longest + cut.most - 1) / cut.most;
  cut.slice = [&runs, most = cut.most](int64_t piece, size_t place) -> Range {
    const int64_t begin = runs.BeginOf(place) + piece * most;
    const int64_t end = runs.BeginOf(place + 1);
    return {std::min(begin, end), std::min(begin + most, end)};
  };
  auto reducer = std::make_shared<PieceReducer>(
      group, runs.list(), options, std::move(cut), /*shares=*/false, staging);
  plan->ThenAsk([reducer](P2PPlan* more) { return reducer->Next(more); });
}

}  // namespace tf_hvd

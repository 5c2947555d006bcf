// SlotWriter: writes one rank's part of pieces into its slots for one process
// set, with ordinary or streaming stores. StoreChoice picks the cheaper kind,
// separately for each reader, for inputs that all read, and for results.
//
// The writer measures its own cost of a write. Readers leave their cost of
// reading it in their ProgressLines. When all of them are done with a piece,
// the writer evaluates it.
//
// As for Operation, called only by the holder of the progress lock.
#ifndef TF_HVD_RUNTIME_TRANSPORT_SHM_SLOT_WRITER_H_
#define TF_HVD_RUNTIME_TRANSPORT_SHM_SLOT_WRITER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/config.h"
#include "compute/buffer_ops.h"
#include "compute/streaming.h"
#include "runtime/contract/spans.h"
#include "runtime/transport/segment/arena.h"
#include "runtime/transport/shm/store_choice.h"

namespace tf_hvd {

// The writes of a rank to its slots.
struct SlotCounts {
  uint64_t ordinary_bytes = 0;
  uint64_t streamed_bytes = 0;
  // Streamed runs, of inputs or of results. Each ends with one fence.
  uint64_t streams = 0;
  // Writes of a piece for one reader, or for all, that are long enough for a
  // choice; the number of them that explored the other kind of stores; and the
  // number of changes of the choice.
  uint64_t writes = 0;
  uint64_t explored = 0;
  uint64_t changes = 0;
};

struct SlotOptions {
  SlotStores stores = SlotStores::kMeasured;
  std::function<void(const std::string&)> log;  // null: no log
};

class SlotWriter {
 public:
  // Readers: the places of the other ranks in the set, and all of them.
  static constexpr size_t kAll = SIZE_MAX;
  // Shorter data is written with ordinary stores, and not timed.
  static constexpr size_t kLeastBytes = size_t{4} << 10;

  SlotWriter(const SlotOptions* options, SlotCounts* counts)
      : options_(options), counts_(counts) {}

  // For pieces with parts of different lengths on each rank: not evaluated,
  // because a reader's time is that of everything it reads.
  static constexpr StoreChoice::Alike kUnlike = 0;

  // The rank at place `me` of those with these lines starts to publish a piece,
  // numbered as in ProgressLine.
  void Publishes(uint64_t piece, StoreChoice::Alike alike, size_t me,
                 const std::vector<ProgressLine*>& lines);
  // The rank starts to consume a piece.
  void Consumes(uint64_t piece) { consumed_ = &OfPiece(piece); }
  // Consuming took this long; 0: not timed.
  void Consumed(int64_t ns) { consumed_->consume_ns = ns; }

  // Inputs, while publishing: elements of `list`, or bytes.
  void Pack(size_t reader, const SpanList& list, int64_t begin, int64_t count,
            char* to);
  void Copy(size_t reader, char* to, const void* from, size_t bytes);

  // Results, while consuming: the kind of stores for the next runs. Called once
  // for all runs of a piece, which have `bytes` in total.
  Stores StoresOfResults(size_t bytes);

  // Writes one of those runs: ReduceInputs.
  void Reduce(const ReduceOptions& options,
              const std::vector<const void*>& inputs, int64_t count,
              char* output, char* copy, Stores stores);

 private:
  // The data of a piece for one reader, or for all.
  struct Written {
    size_t bytes = 0;  // timed bytes
    int64_t ns = 0;
    Stores stores = Stores::kOrdinary;
    StoreChoice::Alike alike = 0;
  };
  struct Piece {
    uint64_t number = 0;
    bool timed = false;  // some part of it is timed
    StoreChoice::Alike alike = 0;
    std::vector<Written> to;  // by the reader's place
    Written to_all;
    Written results;
    int64_t consume_ns = 0;
  };

  Piece& OfPiece(uint64_t piece) { return pieces_[piece % pieces_.size()]; }
  void Learn(const Piece& piece);
  void Learn(const Written& written, int64_t read_ns, size_t reader);
  static constexpr size_t kResults = kAll - 1;
  StoreChoice& ChoiceFor(size_t reader);
  // Chooses the kind of stores at the piece's first write for that reader.
  Stores Choose(Piece* piece, Written* written, size_t bytes,
                StoreChoice* choice);
  template <typename Write>
  void Put(size_t reader, size_t bytes, const Write& write);
  void CountBytes(Stores stores, size_t bytes);

  const SlotOptions* const options_;
  SlotCounts* const counts_;
  size_t me_ = 0;
  std::vector<ProgressLine*> lines_;
  // By the reader's place; then for inputs that all read, then for results.
  std::vector<StoreChoice> choices_;
  std::array<Piece, ProgressLine::kSlots> pieces_;
  Piece* published_ = nullptr;
  Piece* consumed_ = nullptr;
};

}  // namespace tf_hvd

#endif  // TF_HVD_RUNTIME_TRANSPORT_SHM_SLOT_WRITER_H_

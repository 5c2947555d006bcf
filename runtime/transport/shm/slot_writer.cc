#include "runtime/transport/shm/slot_writer.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/clock.h"

namespace tf_hvd {
namespace {

// Writes of about the same size have comparable costs.
StoreChoice::Alike SizeClass(size_t bytes) {
  StoreChoice::Alike log2 = 0;
  while ((bytes >>= 1) > 0) ++log2;
  return log2;
}

constexpr int kSizeBits = 6;
// A shorter run of results is not worth a fence.
constexpr size_t kLeastRunBytes = size_t{1} << 10;

}  // namespace

void SlotWriter::Publishes(uint64_t piece, StoreChoice::Alike alike, size_t me,
                           const std::vector<ProgressLine*>& lines) {
  published_ = &OfPiece(piece);
  if (choices_.empty()) {
    me_ = me;
    lines_ = lines;
    for (size_t reader = 0; reader <= lines.size(); ++reader) {
      choices_.emplace_back(options_->stores);
    }
    // Results are measured with an offset from inputs: a reader's time is
    // separate for each.
    choices_.emplace_back(options_->stores, StoreChoice::kPeriod / 2);
    for (Piece& each : pieces_) each.to.resize(lines.size());
  }
  if (published_->timed) {
    // The readers' times of any other piece are lost: newer ones have
    // overwritten them.
    if (published_->number + pieces_.size() == piece) Learn(*published_);
    published_->timed = false;
    std::fill(published_->to.begin(), published_->to.end(), Written());
    published_->to_all = published_->results = Written();
  }
  published_->number = piece;
  published_->alike = alike << kSizeBits;
}

// A reader that has not timed its part, because all of its data is shorter, has
// left a 0.
void SlotWriter::Learn(const Piece& piece) {
  const size_t index = piece.number % pieces_.size();
  int64_t all_consumed_ns = 0;
  int64_t all_gathered_ns = 0;
  bool all_timed = true;
  for (size_t reader = 0; reader < lines_.size(); ++reader) {
    if (reader == me_) continue;
    const int64_t consume_ns = lines_[reader]->consume_ns[index];
    Learn(piece.to[reader], consume_ns, reader);
    all_timed = all_timed && consume_ns > 0;
    all_consumed_ns += consume_ns;
    all_gathered_ns += lines_[reader]->gather_ns[index];
  }
  if (!all_timed) return;
  Learn(piece.to_all, all_consumed_ns, kAll);
  if (all_gathered_ns > 0 && piece.consume_ns > 0) {
    Learn(piece.results, piece.consume_ns + all_gathered_ns, kResults);
  }
}

void SlotWriter::Learn(const Written& written, int64_t read_ns, size_t reader) {
  if (written.bytes == 0 || read_ns == 0) return;
  StoreChoice& choice = ChoiceFor(reader);
  const Stores before = choice.current();
  choice.Add(written.alike, written.stores,
             static_cast<double>(written.ns + read_ns) /
                 static_cast<double>(written.bytes));
  if (choice.current() == before || options_->stores != SlotStores::kMeasured) {
    return;
  }
  ++counts_->changes;
  if (options_->log == nullptr) return;
  char text[160];
  const char* const name =
      choice.current() == Stores::kStreaming ? "streaming" : "ordinary";
  std::string whom = "place " + std::to_string(reader);
  if (reader == kAll) whom = "all";
  if (reader == kResults) whom = "all, results";
  std::snprintf(text, sizeof(text),
                "slots read by %s: %s stores from now on (%.2f ns a byte with "
                "the other)",
                whom.c_str(), name, choice.cost_before());
  options_->log(text);
}

StoreChoice& SlotWriter::ChoiceFor(size_t reader) {
  if (reader == kResults) return choices_.back();
  return choices_[std::min(reader, lines_.size())];
}

Stores SlotWriter::Choose(Piece* piece, Written* written, size_t bytes,
                          StoreChoice* choice) {
  if (written->bytes > 0) {
    written->bytes += bytes;
    return written->stores;
  }
  if (piece->alike == kUnlike && options_->stores == SlotStores::kMeasured) {
    return choice->current();
  }
  written->bytes = bytes;
  written->alike = piece->alike | SizeClass(bytes);
  written->stores = choice->Next(written->alike);
  ++counts_->writes;
  if (written->stores != choice->current()) ++counts_->explored;
  piece->timed = true;
  return written->stores;
}

void SlotWriter::CountBytes(Stores stores, size_t bytes) {
  if (stores == Stores::kStreaming) {
    counts_->streamed_bytes += bytes;
    ++counts_->streams;
  } else {
    counts_->ordinary_bytes += bytes;
  }
}

template <typename Write>
void SlotWriter::Put(size_t reader, size_t bytes, const Write& write) {
  if (bytes < kLeastBytes) {
    CountBytes(Stores::kOrdinary, bytes);
    return write(Stores::kOrdinary);
  }
  Written* const written =
      reader == kAll ? &published_->to_all : &published_->to[reader];
  const Stores stores = Choose(published_, written, bytes, &ChoiceFor(reader));
  CountBytes(stores, bytes);
  const int64_t begin_ns = NowNs();
  write(stores);
  written->ns += NowNs() - begin_ns;
}

void SlotWriter::Pack(size_t reader, const SpanList& list, int64_t begin,
                      int64_t count, char* to) {
  const size_t bytes = static_cast<size_t>(count) * list.element_bytes();
  Put(reader, bytes,
      [&](Stores stores) { list.Pack(begin, count, to, stores); });
}

void SlotWriter::Copy(size_t reader, char* to, const void* from, size_t bytes) {
  Put(reader, bytes, [&](Stores stores) {
    if (stores == Stores::kStreaming) {
      StreamBytes(to, from, bytes);
      FenceStreams();
    } else if (bytes > 0) {
      std::memcpy(to, from, bytes);
    }
  });
}

Stores SlotWriter::StoresOfResults(size_t bytes) {
  if (bytes < kLeastBytes) return Stores::kOrdinary;
  return Choose(consumed_, &consumed_->results, bytes, &choices_.back());
}

void SlotWriter::Reduce(const ReduceOptions& options,
                        const std::vector<const void*>& inputs, int64_t count,
                        char* output, char* copy, Stores stores) {
  const size_t bytes = static_cast<size_t>(count) * SizeOf(options.dtype);
  if (bytes < kLeastRunBytes) stores = Stores::kOrdinary;
  CountBytes(stores, bytes);
  ReduceInputs(options, inputs, count, output, copy, stores);
}

}  // namespace tf_hvd

#include "runtime/transport/segment/abort_board.h"

#include <algorithm>
#include <cstring>

namespace tf_hvd {
namespace {

// A living writer finishes within far fewer attempts.
constexpr int kReadAttempts = 1000;

// False if the slot is empty, or if its writer died while writing.
bool ReadSlot(const AbortSlot& slot, AbortRecord* record) {
  for (int attempt = 0; attempt < kReadAttempts; ++attempt) {
    const uint32_t version = slot.version;
    if (version == 0) return false;
    if (version % 2 == 1) continue;
    record->error_class = slot.error_class;
    record->rank = slot.rank;
    char text[kAbortTextBytes];
    for (size_t i = 0; i < std::size(slot.text); ++i) {
      const uint64_t word = slot.text[i];
      std::memcpy(text + i * sizeof(word), &word, sizeof(word));
    }
    if (slot.version != version) continue;
    text[kAbortTextBytes - 1] = '\0';
    record->text = text;
    return true;
  }
  return false;
}

}  // namespace

bool AbortBoard::Write(const AbortRecord& record) {
  const MutexLock lock(&write_);
  const uint64_t key = record.Key();
  if (key >= written_key_) return false;
  written_key_ = key;
  AbortSlot& slot = slots_[own_];
  char text[kAbortTextBytes] = "";
  std::memcpy(text, record.text.data(),
              std::min(record.text.size(), kAbortTextBytes - 1));
  ++slot.version;
  slot.error_class = record.error_class;
  slot.rank = record.rank;
  for (size_t i = 0; i < std::size(slot.text); ++i) {
    uint64_t word;
    std::memcpy(&word, text + i * sizeof(word), sizeof(word));
    slot.text[i] = word;
  }
  ++slot.version;
  ++state_->generation;
  return true;
}

std::optional<AbortRecord> AbortBoard::Smallest() const {
  std::optional<AbortRecord> smallest;
  for (int i = 0; i < count_; ++i) {
    AbortRecord record;
    if (!ReadSlot(slots_[i], &record)) continue;
    if (!smallest || record.Before(*smallest)) smallest = std::move(record);
  }
  return smallest;
}

}  // namespace tf_hvd

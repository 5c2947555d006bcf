// Counters of operations that cost time but that a clock cannot measure
// reliably. Tests, which must not depend on a clock, read them. Any thread.
#ifndef TF_HVD_BASE_COUNTERS_H_
#define TF_HVD_BASE_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace tf_hvd {

// In the order of the C API.
enum class Counted : size_t {
  // Lines of 64 bytes in memory shared by the ranks: written, and read when
  // they contained the awaited value. Slots are counted for short operations
  // only.
  kLinesWritten,
  kLinesRead,
  kSystemCalls,  // that wake a thread, or block until woken
  kFences,       // after streaming stores
};
inline constexpr size_t kCounters = 4;

inline std::array<std::atomic<uint64_t>, kCounters> the_counters{};

inline void Count(Counted counter, uint64_t number = 1) {
  the_counters[static_cast<size_t>(counter)].fetch_add(
      number, std::memory_order_relaxed);
}

inline uint64_t CountOf(Counted counter) {
  return the_counters[static_cast<size_t>(counter)].load(
      std::memory_order_relaxed);
}

inline uint64_t LinesOf(uint64_t bytes) { return (bytes + 63) / 64; }

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_COUNTERS_H_

// The steady clock in integer nanoseconds. All times of the runtime use it.
#ifndef TF_HVD_BASE_CLOCK_H_
#define TF_HVD_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace tf_hvd {

inline constexpr int64_t kUs = 1'000;
inline constexpr int64_t kMs = 1'000'000;
inline constexpr int64_t kSecond = 1'000'000'000;

inline int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tf_hvd

#endif  // TF_HVD_BASE_CLOCK_H_

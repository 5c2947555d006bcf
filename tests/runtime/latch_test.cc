#include "base/latch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace tf_hvd {
namespace {

constexpr int64_t kForEver = 3600 * kSecond;

TEST(Latch, TimesOut) {
  Latch latch;
  const int64_t begin_ns = NowNs();
  EXPECT_FALSE(latch.WaitFor(20 * kMs));
  EXPECT_GE(NowNs() - begin_ns, 20 * kMs);
  EXPECT_FALSE(latch.WaitFor(0));
  EXPECT_FALSE(latch.WaitFor(-kMs));
}

TEST(Latch, WakesAllWaiters) {
  Latch latch;
  std::atomic<int> woken{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] { woken += latch.WaitFor(kForEver) ? 1 : 0; });
  }
  EXPECT_FALSE(latch.WaitFor(5 * kMs));
  EXPECT_EQ(woken, 0);
  latch.Set();
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(woken, 4);
}

TEST(Latch, StaysSet) {
  Latch latch;
  latch.Set();
  latch.Set();
  EXPECT_TRUE(latch.WaitFor(0));
  EXPECT_TRUE(latch.WaitFor(kForEver));
}

}  // namespace
}  // namespace tf_hvd

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/request/entry.h"

namespace tf_hvd {
namespace {

TEST(CallerState, AnswersOnce) {
  CallerState caller;
  EXPECT_FALSE(caller.gone());
  EXPECT_TRUE(caller.Answer());
  EXPECT_FALSE(caller.Answer());
  EXPECT_FALSE(caller.GiveUp());
  EXPECT_FALSE(caller.gone());
  EXPECT_FALSE(caller.WhileWaiting([] { FAIL(); }));
}

TEST(CallerState, GivesUpOnce) {
  CallerState caller;
  int used = 0;
  EXPECT_TRUE(caller.WhileWaiting([&] { ++used; }));
  EXPECT_TRUE(caller.GiveUp());
  EXPECT_TRUE(caller.gone());
  EXPECT_FALSE(caller.GiveUp());
  EXPECT_FALSE(caller.Answer());
  EXPECT_FALSE(caller.WhileWaiting([&] { ++used; }));
  EXPECT_EQ(used, 1);
}

// A cancellation, a completion and an allocation at the same time. The thread
// that answers frees the caller's data, and no thread uses it afterwards:
// otherwise the sanitizers report it.
TEST(CallerState, EndsWhileInUse) {
  for (int round = 0; round < 2000; ++round) {
    CallerState caller;
    auto context = std::make_unique<std::vector<int>>();
    std::atomic<int> told{0};
    std::atomic<int> ready{0};
    const auto start = [&ready] {
      ++ready;
      while (ready < 3) std::this_thread::yield();
    };
    const auto tell = [&] {
      context.reset();
      ++told;
    };
    std::thread cancels([&] {
      start();
      if (caller.GiveUp()) tell();
    });
    std::thread completes([&] {
      start();
      if (caller.Answer()) tell();
    });
    start();
    for (int i = 0; i < 3; ++i) {
      caller.WhileWaiting([&] { context->push_back(i); });
    }
    cancels.join();
    completes.join();
    EXPECT_EQ(told, 1);
    EXPECT_EQ(context, nullptr);
  }
}

}  // namespace
}  // namespace tf_hvd

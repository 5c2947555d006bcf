#include "runtime/request/tensor_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"

namespace tf_hvd {
namespace {

Entry Named(std::string name) {
  Entry entry;
  entry.name = std::move(name);
  return entry;
}

TEST(TensorQueue, DrainsInTheOrderOfSubmission) {
  TensorQueue queue;
  EXPECT_TRUE(queue.Empty());
  EXPECT_TRUE(queue.Drain().empty());
  for (const char* name : {"c", "a", "b"}) queue.Push(Named(name));
  EXPECT_FALSE(queue.Empty());
  const std::vector<Entry> entries = queue.Drain();
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0].name, "c");
  EXPECT_EQ(entries[1].name, "a");
  EXPECT_EQ(entries[2].name, "b");
  EXPECT_TRUE(queue.Empty());
  EXPECT_TRUE(queue.Drain().empty());
}

TEST(TensorQueue, StampsTheTimeOfSubmission) {
  TensorQueue queue;
  const int64_t before = NowNs();
  queue.Push(Named("a"));
  const int64_t after = NowNs();
  const std::vector<Entry> entries = queue.Drain();
  EXPECT_GE(entries.at(0).submitted_ns, before);
  EXPECT_LE(entries.at(0).submitted_ns, after);
}

TEST(TensorQueue, ACallEndsACompilation) {
  TensorQueue queue;
  EXPECT_EQ(queue.compiling(), "");
  queue.NoteCompilation("step");
  queue.NoteCompilation("other");
  EXPECT_TRUE(queue.Drain().empty());
  EXPECT_EQ(queue.compiling(), "other");
  queue.Push(Named("a"));
  EXPECT_EQ(queue.compiling(), "");
}

// Nothing is lost or doubled, and each thread's entries stay in order.
TEST(TensorQueue, ManyThreadsPushWhileOneDrains) {
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  TensorQueue queue;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kEach; ++i) {
        Entry entry = Named(std::string(1, static_cast<char>('a' + t)));
        entry.set = i;
        queue.Push(std::move(entry));
        // What this thread has pushed is visible until it is drained.
        static_cast<void>(queue.Empty());
      }
      --running;
    });
  }
  std::map<std::string, int32_t> next;
  while (running > 0 || !queue.Empty()) {
    for (const Entry& entry : queue.Drain()) {
      EXPECT_EQ(entry.set, next[entry.name]++);
    }
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(next.size(), static_cast<size_t>(kThreads));
  for (const auto& [name, count] : next) EXPECT_EQ(count, kEach) << name;
}

}  // namespace
}  // namespace tf_hvd

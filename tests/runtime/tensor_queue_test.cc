#include "runtime/request/tensor_queue.h"

#include <gtest/gtest.h>

#include <string>
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

TEST(TensorQueue, SetsTheTimeOfSubmission) {
  TensorQueue queue;
  const int64_t before = NowNs();
  queue.Push(Named("a"));
  const int64_t after = NowNs();
  const std::vector<Entry> entries = queue.Drain();
  EXPECT_GE(entries.at(0).submitted_ns, before);
  EXPECT_LE(entries.at(0).submitted_ns, after);
}

TEST(TensorQueue, CallEndsACompilation) {
  TensorQueue queue;
  EXPECT_EQ(queue.compiling(), "");
  queue.NoteCompilation("step");
  queue.NoteCompilation("other");
  EXPECT_TRUE(queue.Drain().empty());
  EXPECT_EQ(queue.compiling(), "other");
  queue.Push(Named("a"));
  EXPECT_EQ(queue.compiling(), "");
}

}  // namespace
}  // namespace tf_hvd

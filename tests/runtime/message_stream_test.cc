
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "runtime/agreement/message.h"

namespace tf_hvd {
namespace {

// An edge that accepts and returns a configurable number of bytes at a time.
struct FakeEdge final : Edge {
  size_t Write(const char* data, size_t size) override {
    const size_t taken = std::min(size, room);
    room -= taken;
    written.append(data, taken);
    return taken;
  }
  void Flush() override { ++flushes; }
  size_t Read(char* data, size_t size) override {
    const size_t given = std::min({size, limit, arrived.size()});
    std::copy_n(arrived.begin(), given, data);
    arrived.erase(0, given);
    if (limit_once) limit = 0;
    return given;
  }
  bool Readable() const override { return !arrived.empty(); }
  bool polled() const override { return polled_answer; }

  std::string written;
  std::string arrived;
  size_t room = 0;
  size_t limit = std::string::npos;
  bool limit_once = false;
  bool polled_answer = false;
  int flushes = 0;
};

std::string Leave(const std::string& text) {
  Message message;
  message.kind = MessageKind::kLeave;
  message.text = text;
  return EncodeMessage(message);
}

std::vector<std::string> PullAll(MessageStream* stream) {
  std::vector<std::string> got;
  stream->Pull([&](std::string_view m) { got.emplace_back(m); });
  return got;
}

TEST(MessageStream, KeepsBytesThatDoNotFit) {
  FakeEdge edge;
  MessageStream stream(0, &edge);
  stream.Send("abcdef");
  EXPECT_TRUE(stream.HasOutput());
  EXPECT_FALSE(stream.Push());  // nothing was sent
  edge.room = 4;
  EXPECT_TRUE(stream.Push());
  EXPECT_EQ(edge.written, "abcd");
  EXPECT_GE(edge.flushes, 1);
  EXPECT_TRUE(stream.HasOutput());
  stream.Send("gh");
  edge.room = 100;
  EXPECT_TRUE(stream.Push());
  EXPECT_EQ(edge.written, "abcdefgh");
  EXPECT_FALSE(stream.HasOutput());
  EXPECT_FALSE(stream.Push());
}

TEST(MessageStream, MessagesSplitAnywhere) {
  std::mt19937 random(2);
  std::string bytes;
  std::vector<std::string> expected;
  for (int i = 0; i < 200; ++i) {
    expected.push_back(Leave(std::string(random() % 100, 'x')));
    bytes += expected.back();
  }
  FakeEdge edge;
  edge.limit_once = true;
  MessageStream stream(0, &edge);
  std::vector<std::string> got;
  edge.arrived = bytes;
  while (!edge.arrived.empty()) {
    edge.limit = 1 + random() % 40;
    stream.Pull([&](std::string_view m) { got.emplace_back(m); });
  }
  EXPECT_EQ(got, expected);
}

TEST(MessageStream, MessagesLargerThanOneRead) {
  FakeEdge edge;
  MessageStream stream(0, &edge);
  const std::string large = Leave(std::string(100'000, 'y'));
  edge.arrived = large + large;
  EXPECT_EQ(PullAll(&stream), (std::vector<std::string>{large, large}));
}

TEST(MessageStream, ReceiverCanSend) {
  FakeEdge edge;
  edge.room = 1000;
  edge.arrived = Leave("a") + Leave("b");
  MessageStream stream(0, &edge);
  int calls = 0;
  EXPECT_TRUE(stream.Pull([&](std::string_view) {
    stream.Send("reply");
    ++calls;
  }));
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(stream.Push());
  EXPECT_EQ(edge.written, "replyreply");
}

// Bytes that are not a message are passed on, for the controller to report, and
// do not stop the stream silently.
TEST(MessageStream, InvalidLengthIsPassedOn) {
  FakeEdge edge;
  MessageStream stream(0, &edge);
  edge.arrived = std::string(kHeaderBytes, '\0');
  ASSERT_EQ(PullAll(&stream).size(), 1u);
}

}  // namespace
}  // namespace tf_hvd

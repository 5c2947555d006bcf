// Tests specific to P2PBackend; collectives_test.cc has those for all backends.
#include <gtest/gtest.h>

#include <cstring>
#include <string_view>
#include <vector>

#include "runtime/transport/p2p/backend.h"
#include "tests/runtime/transport/collectives.h"

namespace tf_hvd {
namespace {

template <typename T>
Span InPlace(std::vector<T>* values) {
  return {values->data(), values->data(), static_cast<int64_t>(values->size())};
}

TEST(P2PBackend, OneRankNeedsNoMessages) {
  P2PBackend backend(nullptr, 0);
  Collectives single(&backend);
  std::vector<float> values = {1, 2, 3};
  std::vector<float> output(3);
  std::vector<float> zeros(2, 9.0f);
  const std::vector<Span> spans = {{values.data(), output.data(), 3},
                                   {nullptr, zeros.data(), 2},
                                   {values.data(), nullptr, 3}};
  EXPECT_TRUE(single
                  .Allreduce({0}, spans,
                             Options(DType::kFloat32, ReduceOp::kAverage), {})
                  .ok());
  EXPECT_EQ(output, values);
  EXPECT_EQ(zeros, std::vector<float>(2, 0.0f));
  EXPECT_TRUE(single
                  .Allreduce({0}, {InPlace(&values)},
                             Options(DType::kFloat32, ReduceOp::kSum, 0.5, 8.0),
                             {})
                  .ok());
  EXPECT_EQ(values, (std::vector<float>{4, 8, 12}));
  EXPECT_TRUE(
      single.Allgather({0}, values.data(), {12}, output.data(), {}).ok());
  EXPECT_EQ(output, values);
  EXPECT_TRUE(single.Broadcast({0}, 0, values.data(), 12, {}).ok());
}

// Simulates an MPI that cannot cancel posted messages.
class StubbornLink final : public PointToPoint {
 public:
  Status Send(int, int, const void*, size_t, MessageHandle* handle) override {
    *handle = 1;
    return Status::Ok();
  }
  Status Receive(int, int, void* data, size_t bytes,
                 MessageHandle* handle) override {
    received_ = std::string_view(static_cast<char*>(data), bytes);
    target_ = static_cast<char*>(data);
    *handle = 2;
    return Status::Ok();
  }
  Status Test(MessageHandle, bool* done) override {
    *done = false;
    return Status::Ok();
  }
  bool Abandon(MessageHandle) override { return false; }

  bool expects() const { return target_ != nullptr; }
  // The message that arrives too late.
  void Arrive() { std::memset(target_, 'x', received_.size()); }

 private:
  std::string_view received_;
  char* target_ = nullptr;
};

TEST(P2PBackend, ReportsMemoryThatMayStillBeWritten) {
  StubbornLink p2p;
  float value = 1.0f;
  {
    P2PBackend backend(&p2p, 0);
    Collectives transport(&backend);
    EXPECT_FALSE(transport.memory_in_use());
    const Status status = transport.Allreduce(
        {0, 1}, {{&value, &value, 1}}, Options(DType::kFloat32, ReduceOp::kSum),
        [&] { return p2p.expects() ? Aborted("stop") : Status::Ok(); });
    EXPECT_EQ(status.message(), "stop");
    EXPECT_TRUE(transport.memory_in_use());
  }
  p2p.Arrive();  // AddressSanitizer would see it
  EXPECT_EQ(value, 1.0f);
}

TEST(P2PBackend, RejectsInvalidOperations) {
  P2PBackend backend(nullptr, 0);
  Collectives transport(&backend);
  bool value = true;
  const std::vector<Span> spans = {{&value, &value, 1}};
  EXPECT_EQ(
      transport
          .Allreduce({0}, spans, Options(DType::kBool, ReduceOp::kAverage), {})
          .code(),
      StatusCode::kInternal);
  EXPECT_EQ(
      transport
          .Allreduce({1, 2}, spans, Options(DType::kBool, ReduceOp::kMax), {})
          .code(),
      StatusCode::kInternal);
  EXPECT_EQ(transport.Broadcast({0}, 1, &value, 1, {}).code(),
            StatusCode::kInternal);
}

}  // namespace
}  // namespace tf_hvd

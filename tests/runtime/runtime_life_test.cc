// The life of a runtime: threads, completions that submit again, starting and
// ending often.
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

class LifeTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, LifeTest, ::testing::ValuesIn(AllNodes()),
                         TreeName);

long ThreadsOfThisProcess() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

TEST(Life, SingleRankHasNoThreadAndCompletesImmediately) {
  const long before = ThreadsOfThisProcess();
  const auto runtime = MakeRuntime(Config(), std::move(MakeLoopback({})[0]));
  OpenRequests open;
  Rank self(runtime.get(), &open);
  EXPECT_EQ(ThreadsOfThisProcess(), before);
  std::vector<float> data = {3};
  const Pending sum = self.Allreduce("x", &data);
  ASSERT_TRUE(sum.done());
  EXPECT_TRUE(sum.status().ok());
  EXPECT_EQ(data[0], 3);
  EXPECT_TRUE(self.Barrier("b").done());
  EXPECT_EQ(self.Join().value(), 0);
  EXPECT_EQ(self.AddSet("s", {0}).value(), 1);
  const Pending gather = self.Allgather("g", data);
  ASSERT_TRUE(gather.done());
  EXPECT_EQ(gather.gathered->As<float>(), data);
  EXPECT_EQ(runtime->SubmittedCount(), 5);
  EXPECT_EQ(ThreadsOfThisProcess(), before);
  runtime->Shutdown("shutdown()", true);
  EXPECT_EQ(self.Barrier("b").status().code(), StatusCode::kAborted);
}

// Each completion submits the next request. The runtime must not fire them
// nested in one another: that would need a deeper stack with each request.
void RunChain(Rank* self, int length) {
  std::vector<int64_t> data = {1};
  std::promise<Status> finished;
  std::atomic<int> nested{0};
  std::function<void(int)> next = [&](int step) {
    Entry entry = Rank::Plain(OpKind::kAllreduce, "chain", kWorldSet);
    entry.request.reduce_op = ReduceOp::kMax;
    entry.request.tensors.push_back({DType::kInt64, {1}});
    entry.tensors.push_back({data.data(), data.data(), 1});
    entry.done = Completion([&, step](const Status& status, int32_t) {
      thread_local int depth = 0;
      if (++depth > 1) ++nested;
      data[0] += 1;
      if (step == length || !status.ok()) {
        --depth;
        finished.set_value(status);
        return;
      }
      next(step + 1);
      --depth;
    });
    self->runtime()->Submit(std::move(entry));
  };
  next(1);
  const Status status = finished.get_future().get();
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(data[0], 1 + length);
  EXPECT_EQ(nested, 0);
}

TEST_P(LifeTest, CompletionsThatSubmitAgain) {
  Job job(GetParam());
  const int length = job.size() <= 2 ? 1000 : 300;
  job.Run([&](Rank& self) { RunChain(&self, length); });
}

// Edges of a few bytes: every message is split, and out-queues fill.
TEST_P(LifeTest, TinyEdges) {
  Job job(GetParam(), Config(), /*fan_out=*/1, /*edge_bytes=*/13);
  job.Run([](Rank& self) {
    for (int round = 0; round < 2; ++round) {
      std::vector<std::vector<int32_t>> data(20, {1, 2});
      std::vector<Pending> pending;
      for (size_t i = 0; i < data.size(); ++i) {
        pending.push_back(self.Allreduce(
            std::string(i * 10, 'n') + std::to_string(i), &data[i]));
      }
      for (size_t i = 0; i < data.size(); ++i) {
        ASSERT_TRUE(pending[i].status().ok());
        EXPECT_EQ(data[i],
                  (std::vector<int32_t>{self.size(), 2 * self.size()}));
      }
    }
  });
}

TEST_P(LifeTest, StartedAndEndedOften) {
  const int cycles = GetParam().size() == 1 && GetParam()[0] <= 2 ? 100 : 20;
  for (int cycle = 0; cycle < cycles; ++cycle) {
    Job job(GetParam());
    job.Run([&](Rank& self) {
      std::vector<int32_t> data = {cycle};
      if (cycle % 3 == 0) return;  // ended without use
      ASSERT_TRUE(self.Allreduce("x", &data).status().ok());
      ASSERT_EQ(data[0], cycle * self.size());
    });
  }
}

// True if rank 0's thread completed an allreduce of 4 MB inside Submit.
bool MovedByItsCaller(bool caller_waits) {
  Config config;
  config.spin_ns = 60'000'000'000;  // makes progress as long as allowed
  Job job({2}, config);
  std::atomic<bool> moved{false};
  job.Run([&](Rank& self) {
    std::vector<float> data(1'000'000, 1);
    Entry entry = Rank::Plain(OpKind::kAllreduce, "x", kWorldSet);
    entry.request.tensors.push_back({DType::kFloat32, {1'000'000}});
    entry.tensors.push_back({data.data(), data.data(), 1'000'000});
    entry.caller_waits = caller_waits;
    Pending pending;
    std::promise<Ended> promise;
    pending.ended = promise.get_future().share();
    const std::thread::id caller = std::this_thread::get_id();
    entry.done = Completion([&](const Status& status, int32_t value) {
      if (self.rank() == 0) moved = std::this_thread::get_id() == caller;
      promise.set_value({status, value});
    });
    self.runtime()->Submit(std::move(entry));
    EXPECT_TRUE(pending.status().ok());
    EXPECT_EQ(data, std::vector<float>(1'000'000, 2));
  });
  return moved;
}

// The background thread may hold the progress lock when the request arrives;
// then that thread executes it.
TEST(Life, WaitingCallerExecutesRequestsOfAnySize) {
  if (std::thread::hardware_concurrency() < 2)
    GTEST_SKIP() << "no thread spins";
  int attempts = 0;
  while (!MovedByItsCaller(true)) ASSERT_LT(++attempts, 20);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(MovedByItsCaller(false));
}

// Two large allreduces are in progress. Rank 0's first completion returns when
// rank 1 has the second result, so rank 0 must continue to move data meanwhile.
TEST(Life, SlowCompletionDoesNotHoldUpData) {
  Job job({1, 1});
  std::promise<void> second;
  const std::shared_future<void> second_is_there = second.get_future().share();
  job.Run([&](Rank& self) {
    constexpr int64_t kCount = 4'000'000;
    std::vector<float> data[2];
    for (std::vector<float>& one : data) one.assign(kCount, 1);
    std::promise<void> fired[2];
    for (int i = 0; i < 2; ++i) {
      Entry entry =
          Rank::Plain(OpKind::kAllreduce, i == 0 ? "a" : "b", kWorldSet);
      // Different operations, so that they are not fused.
      entry.request.reduce_op = i == 0 ? ReduceOp::kSum : ReduceOp::kMax;
      entry.request.tensors.push_back({DType::kFloat32, {kCount}});
      entry.tensors.push_back({data[i].data(), data[i].data(), kCount});
      entry.done = Completion([&, i](const Status& status, int32_t) {
        EXPECT_TRUE(status.ok()) << status.message();
        if (self.rank() == 0 && i == 0) second_is_there.wait();
        if (self.rank() == 1 && i == 1) second.set_value();
        fired[i].set_value();
      });
      self.runtime()->Submit(std::move(entry));
    }
    for (std::promise<void>& one : fired) one.get_future().wait();
    EXPECT_EQ(data[0].back(), 2);
    EXPECT_EQ(data[1].back(), 1);
  });
}

// Callers that wait only for a moment. Some complete their request themselves,
// and the background thread leaves arrivals to them. Others hand it over, at
// the start or later.
TEST_P(LifeTest, CallersThatWaitHandOver) {
  Config config;
  config.spin_ns = 5'000;
  Job job(GetParam(), config);
  job.Run([](Rank& self) {
    CallOptions options;
    options.caller_waits = true;
    std::vector<float> data(3000);
    for (int round = 0; round < 200; ++round) {
      data.assign(data.size(), 1);
      ASSERT_TRUE(self.Allreduce("x", &data, options).status().ok());
      ASSERT_EQ(data.back(), self.size());
    }
  });
}

}  // namespace
}  // namespace tf_hvd

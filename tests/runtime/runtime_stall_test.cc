// Stalls: every wait ends, with a text that says who is missing.
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

// Whose thread gets no core for half of the time for a warning counts as
// silent.
#if defined(__SANITIZE_THREAD__)
constexpr int kSlow = 4;
#else
constexpr int kSlow = 2;
#endif
constexpr int64_t kSlowMs = kMs * kSlow;

void Sleep(int ms) {
  std::this_thread::sleep_for(std::chrono::milliseconds(ms * kSlow));
}

Config Impatient() {
  Config config;
  config.stall_warn_ns = 150 * kSlowMs;
  config.stall_fail_ns = 900 * kSlowMs;
  return config;
}

// For tests of the last report alone: ranks have long to answer for it.
Config Reporting() {
  Config config;
  config.stall_warn_ns = 1'500'000'000;
  config.stall_fail_ns = 2'500'000'000;
  return config;
}

class StallTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, StallTest,
                         ::testing::Values(std::vector<int>{2},
                                           std::vector<int>{1, 3}),
                         TreeName);

void ExpectPart(const Status& status, const std::string& part) {
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

TEST_P(StallTest, NamesTheTensorAndTheMissingRank) {
  Job job(GetParam(), Reporting());
  const int missing = job.size() - 1;
  const std::string host =
      job.world(missing)->topology().hosts[static_cast<size_t>(missing)];
  std::vector<std::string> texts(static_cast<size_t>(job.size()));
  job.Run([&](Rank& self) {
    std::vector<float> data = {1};
    const std::string name = self.rank() == missing ? "other" : "x";
    const Status status = self.Allreduce(name, &data).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    texts[static_cast<size_t>(self.rank())] = status.message();
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
  const Status status = Aborted(texts[0]);
  ExpectPart(status, "stall: ");
  // Whichever of the two was reported first.
  if (texts[0].find("stall: 'x' (world)") != std::string::npos) {
    ExpectPart(status,
               "missing rank " + std::to_string(missing) + " (" + host + ")");
    ExpectPart(status, "rank " + std::to_string(missing) +
                           " waits for 'other' (world)");
  } else {
    ExpectPart(status, "'other' (world) waited");
    ExpectPart(status, "submitted by rank " + std::to_string(missing) + " (" +
                           host + ")");
    ExpectPart(status, "missing rank 0 (node0)");
    ExpectPart(status, missing == 1 ? "rank 0 waits for 'x' (world)"
                                    : "ranks 0, 1, 2 wait for 'x' (world)");
  }
}

// Ranks that wait for nothing are in their own code.
TEST_P(StallTest, NamesRanksThatWaitForNothing) {
  Job job(GetParam(), Reporting());
  const int busy = job.size() - 1;
  job.Run([&](Rank& self) {
    if (self.rank() == busy) return;
    std::vector<float> data = {1};
    const Status status = self.Allreduce("x", &data).status();
    ExpectPart(status, "'x' (world) waited");
    ExpectPart(status,
               "; rank " + std::to_string(busy) + " waits for no collective");
  });
}

// Two ranks wait for as many other things; of one rank's only the first two
// are told.
TEST(Stall, NamesWhatEachRankWaitsFor) {
  Job job({1, 3}, Reporting());
  job.Run([](Rank& self) {
    std::vector<std::vector<float>> data(4, {1});
    std::vector<Pending> pending;
    const std::vector<std::vector<std::string>> names = {
        {"x"}, {"x"}, {"a"}, {"b", "c", "d", "e"}};
    for (const std::string& name : names[static_cast<size_t>(self.rank())]) {
      pending.push_back(self.Allreduce(name, &data[pending.size()]));
    }
    const std::string text = pending.front().status().message();
    // Whichever was reported first.
    if (text.find("stall: 'x'") != std::string::npos) {
      EXPECT_NE(text.find("; rank 2 waits for 'a' (world); rank 3 waits for 'b'"
                          " (world), 'c' (world) and 2 more"),
                std::string::npos)
          << text;
    } else {
      EXPECT_NE(text.find("; ranks 0, 1 wait for 'x' (world)"),
                std::string::npos)
          << text;
    }
  });
}

// One name in two sets: each waits for those who are in the other one.
TEST(Stall, SameNameInAnotherProcessSet) {
  Job job({1, 2}, Reporting());
  job.Run([](Rank& self) {
    ASSERT_EQ(self.AddSet("s", {0, 1}).value(), 1);
    std::vector<float> data = {1};
    CallOptions options;
    options.set = self.rank() == 0 ? 1 : kWorldSet;
    const Status status = self.Allreduce("x", &data, options).status();
    if (status.message().find("stall: 'x' (process set 1)") !=
        std::string::npos) {
      ExpectPart(status,
                 "missing rank 1 (node1); rank 1 waits for 'x' (world)"
                 ": the same name in another process set");
    } else {
      ExpectPart(status,
                 "missing rank 0 (node0); rank 0 waits for 'x' "
                 "(process set 1): the same name in another process set");
    }
  });
}

// A warning only: when the rank comes after all, all is well.
TEST_P(StallTest, WarnsAndGoesOn) {
  Config config = Impatient();
  config.stall_fail_ns = 0;
  testing::internal::CaptureStderr();
  {
    Job job(GetParam(), config);
    job.Run([](Rank& self) {
      std::vector<int32_t> data = {1};
      if (self.rank() == 0) {
        Sleep(1500);
      }
      EXPECT_TRUE(self.Allreduce("late", &data).status().ok());
      EXPECT_EQ(data[0], self.size());
    });
  }
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_NE(log.find("tf_hvd warning, rank"), std::string::npos) << log;
  EXPECT_NE(log.find("stall: 'late' (world) waited"), std::string::npos) << log;
  EXPECT_NE(log.find("missing rank 0 (node0)"), std::string::npos) << log;
}

// A rank that does not even answer, at the bottom of the tree.
TEST_P(StallTest, SilentRank) {
  Job job(GetParam(), Reporting());
  const int silent = job.size() - 1;
  job.NeverStart(silent);
  job.Run([&](Rank& self) {
    std::vector<float> data = {1};
    const Status status = self.Allreduce("x", &data).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    ExpectPart(status, "'x' (world)");
    ExpectPart(status, "no answer from rank " + std::to_string(silent));
  });
}

// The rank that would send the query is the one that is stopped.
TEST(Stall, SilentTop) {
  Job job({2, 2}, Impatient());
  job.NeverStart(0);
  job.Run([&](Rank& self) {
    std::vector<float> data = {1};
    const Status status = self.Allreduce("x", &data).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    ExpectPart(status, "'x' (world) got no decision within");
    ExpectPart(status, "; no answer from ");
    ExpectPart(status, "rank 0 (node0) (stopped, or its machine cannot be");
  });
}

// All ranks agreed, and then one does not come out of the operation.
TEST(Stall, StuckInsideAnOperation) {
  Job job({1, 2}, Impatient());
  const int stuck = job.size() - 1;
  std::promise<void> others_ended;
  std::atomic<int> ended{0};
  job.Run([&](Rank& self) {
    std::vector<float> data(1000, 1);
    Entry entry = Rank::Plain(OpKind::kAllgather, "x", kWorldSet);
    entry.request.tensors.push_back({DType::kFloat32, {-1}});
    entry.tensors.push_back({data.data(), nullptr, 1000});
    entry.rows = {1000};
    std::vector<float> all(1000 * static_cast<size_t>(self.size()));
    entry.allocate = [&](size_t, const std::vector<int64_t>&, void** output) {
      if (self.rank() == stuck) others_ended.get_future().wait();
      *output = all.data();
      return Status::Ok();
    };
    const Status status = self.Submit(std::move(entry)).status();
    // The stuck rank has all rows and may still use them.
    if (self.rank() == stuck) return;
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    ExpectPart(status, "'x' (world) was agreed by all ranks");
    if (++ended == job.size() - 1) others_ended.set_value();
  });
}

// One rank's thread waits, inside Submit, for a peer that is late in a small
// operation. Returns true if that thread executed it itself.
bool CallerIsTold() {
  Config config = Impatient();
  config.spin_ns = 60'000 * kSlowMs;  // the caller takes part as long as it can
  Job job({2}, config);
  std::promise<void> told;
  std::atomic<bool> in_place{false};
  job.Run([&](Rank& self) {
    const std::thread::id caller = std::this_thread::get_id();
    std::vector<float> data(10, 1);
    std::vector<float> all(20);
    Entry entry = Rank::Plain(OpKind::kAllgather, "x", kWorldSet);
    entry.request.tensors.push_back({DType::kFloat32, {-1}});
    entry.tensors.push_back({data.data(), nullptr, 10});
    entry.rows = {10};
    entry.allocate = [&](size_t, const std::vector<int64_t>&, void** output) {
      if (self.rank() == 0) in_place = std::this_thread::get_id() == caller;
      if (self.rank() == 1) told.get_future().wait();
      *output = all.data();
      return Status::Ok();
    };
    const Status status = self.Submit(std::move(entry)).status();
    if (self.rank() == 1) return;
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    ExpectPart(status, "'x' (world) was agreed by all ranks");
    ExpectPart(status, "no data from rank 1 (node0)");
    told.set_value();
  });
  return in_place;
}

// The background thread may have the progress lock when the request comes: then
// that thread executes it.
TEST(Stall, ACallerInsideAnOperationIsTold) {
  if (std::thread::hardware_concurrency() < 2) GTEST_SKIP() << "nobody spins";
  int attempts = 0;
  while (!CallerIsTold()) ASSERT_LT(++attempts, 20);
}

TEST_P(StallTest, NoCheckWithoutAWarningLimit) {
  Config config;
  config.stall_warn_ns = 0;
  config.stall_fail_ns = 1;
  Job job(GetParam(), config);
  job.Run([](Rank& self) {
    std::vector<int32_t> data = {1};
    if (self.rank() == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    EXPECT_TRUE(self.Allreduce("late", &data).status().ok());
  });
}

// A set inside a node has its own top for this.
TEST(Stall, InAProcessSet) {
  Job job({1, 3}, Reporting());
  job.Run([](Rank& self) {
    const Pending added = self.AddSet("s", {1, 2, 3});
    ASSERT_EQ(added.value(), 1);
    if (self.rank() == 0 || self.rank() == 3) return;
    std::vector<float> data = {1};
    CallOptions options;
    options.set = 1;
    const Status status = self.Allreduce("x", &data, options).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    ExpectPart(status, "stall: 'x' (process set 1)");
    ExpectPart(status, "missing rank 3 (node1)");
  });
}

// Waiting in join() is no stall while the others still work.
TEST(Stall, JoinMayWaitLong) {
  Config config;
  config.stall_warn_ns = 2'000'000'000;
  config.stall_fail_ns = 5'000'000'000;
  Job job({3}, config);
  job.Run([&](Rank& self) {
    const int64_t end_ns = NowNs() + config.stall_fail_ns + 1'000'000'000;
    // Rank 1 says when they have worked for long enough.
    for (bool goes_on = self.rank() > 0; goes_on;) {
      std::vector<int32_t> data = {self.rank() == 1 && NowNs() < end_ns};
      ASSERT_TRUE(self.Allreduce("step", &data).status().ok());
      goes_on = data[0] > 0;
      Sleep(50);
    }
    const Pending join = self.Join();
    EXPECT_TRUE(join.status().ok()) << join.status().message();
  });
}

}  // namespace
}  // namespace tf_hvd

// Stalls: every wait ends, with a text that names the missing ranks.
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

// A thread that gets no core for half of the warning time counts as silent.
#if defined(__SANITIZE_THREAD__)
constexpr int kSlow = 4;
#else
constexpr int kSlow = 2;
#endif
constexpr int64_t kSlowMs = kMs * kSlow;

Config Impatient() {
  Config config;
  config.stall_warn_ns = 150 * kSlowMs;
  config.stall_fail_ns = 900 * kSlowMs;
  return config;
}

// For tests of only the last report: ranks have a long time to answer.
Config Reporting() {
  Config config;
  config.stall_warn_ns = 1'500'000'000;
  config.stall_fail_ns = 2'500'000'000;
  return config;
}

void ExpectPart(const Status& status, const std::string& part) {
  EXPECT_NE(status.message().find(part), std::string::npos) << status.message();
}

// Two ranks wait for two different calls; for one rank only the first two are
// reported.
TEST(Stall, ReportsTheWaitsOfEachRank) {
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
    // Depends on which was reported first.
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

// A warning only: if the rank calls later, the job continues.
TEST(Stall, WarnsAndContinues) {
  Config config = Impatient();
  config.stall_fail_ns = 0;
  testing::internal::CaptureStderr();
  {
    Job job({1, 2}, config);
    job.Run([](Rank& self) {
      std::vector<int32_t> data = {1};
      if (self.rank() == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1500 * kSlow));
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

// All ranks agreed, and then one does not finish the operation.
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
// operation. True if that thread executed the operation itself.
bool CallerGetsTheError() {
  Config config = Impatient();
  config.spin_ns = 60'000 * kSlowMs;  // makes progress as long as allowed
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

// The background thread may hold the progress lock when the request arrives;
// then that thread executes it.
TEST(Stall, CallerInsideAnOperationGetsTheError) {
  if (std::thread::hardware_concurrency() < 2)
    GTEST_SKIP() << "no thread spins";
  int attempts = 0;
  while (!CallerGetsTheError()) ASSERT_LT(++attempts, 20);
}

}  // namespace
}  // namespace tf_hvd

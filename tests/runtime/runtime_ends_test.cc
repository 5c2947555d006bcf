// Ends: ranks that leave, raise or die, in any order, with requests pending.
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/job.h"

namespace tf_hvd {
namespace {

class EndsTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, EndsTest, ::testing::ValuesIn(AllNodes()),
                         TreeName);

// Tests that wait until no smaller abort record can arrive.
class DeathTest : public OnEachTree {};
INSTANTIATE_TEST_SUITE_P(Trees, DeathTest,
                         ::testing::Values(std::vector<int>{2},
                                           std::vector<int>{2, 2},
                                           std::vector<int>{1, 1, 1}),
                         TreeName);

std::string HostOf(Job* job, int rank) {
  return job->world(rank)->topology().hosts[static_cast<size_t>(rank)];
}

TEST_P(EndsTest, ShutdownInAnyOrder) {
  for (int first = 0; first < 3; ++first) {
    Job job(GetParam());
    job.Run([&](Rank& self) {
      std::vector<float> data = {1};
      ASSERT_TRUE(self.Allreduce("x", &data).status().ok());
      const int place = (self.rank() + first) % self.size();
      std::this_thread::sleep_for(std::chrono::milliseconds(3 * place));
      self.runtime()->Shutdown("shutdown()", true);
      self.runtime()->Shutdown("again", false);
    });
  }
}

// One rank skips a call under a name that is used again. Its later calls match
// the other ranks' earlier ones, and the error of the remaining call reports
// that.
TEST_P(EndsTest, SkippedCallIsReportedAtTheEnd) {
  Job job(GetParam());
  if (job.size() == 1) return;
  job.Run([](Rank& self) {
    const bool skips = self.rank() == self.size() - 1;
    for (int step = 0; step < (skips ? 3 : 4); ++step) {
      std::vector<int32_t> data = {1};
      const Status status = self.Allreduce("loss", &data).status();
      EXPECT_EQ(status.ok(), step < 3);
      if (step < 3) continue;
      EXPECT_NE(status.message().find(
                    " left: shutdown(); 'loss', which has run before, was not "
                    "called the same number of times on all ranks"),
                std::string::npos)
          << status.message();
    }
    if (!skips) return;
    self.runtime()->Shutdown("shutdown()", true);
  });
}

// The leaving rank is not a member of the set, so its members have made the
// same calls.
TEST(Ends, SkippedCallIsNotReportedToOtherSets) {
  Job job({3});
  job.Run([](Rank& self) {
    const int32_t set = self.AddSet("pair", {0, 1}).value();
    std::vector<int32_t> data = {1};
    if (self.rank() == 2) {
      EXPECT_TRUE(self.Barrier("all").status().ok());
      return self.runtime()->Shutdown("exit", true);
    }
    CallOptions options;
    options.set = set;
    EXPECT_TRUE(self.Allreduce("loss", &data, options).status().ok());
    EXPECT_TRUE(self.Barrier("all").status().ok());
    if (self.rank() == 1) {
      EXPECT_FALSE(self.Barrier("never").status().ok());
      return;
    }
    const Status status = self.Allreduce("loss", &data, options).status();
    EXPECT_NE(status.message().find(" left: exit"), std::string::npos)
        << status.message();
    EXPECT_EQ(status.message().find("same number of times"), std::string::npos)
        << status.message();
  });
}

// The destructor ends everything without a Shutdown.
TEST_P(EndsTest, DestructionCompletesPendingRequests) {
  std::vector<Pending> pending;
  std::vector<float> data = {1};
  {
    Job job(GetParam());
    if (job.size() == 1) return;
    job.Run([&](Rank& self) {
      if (self.rank() != 1) return;
      for (const char* name : {"a", "b", "c"}) {
        pending.push_back(self.Allreduce(name, &data));
      }
      pending.push_back(self.Join());
    });
  }
  for (const Pending& one : pending) {
    ASSERT_TRUE(one.done());
    EXPECT_EQ(one.status().code(), StatusCode::kAborted);
    EXPECT_NE(one.status().message().find("left: runtime destroyed"),
              std::string::npos);
  }
}

TEST_P(EndsTest, ShutdownWhileThreadsSubmit) {
  Job job(GetParam());
  job.Run([](Rank& self) {
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&self, &stop, t] {
        std::vector<float> data = {1};
        while (!stop) {
          const Status status =
              self.Allreduce("t" + std::to_string(t), &data).status();
          if (status.ok()) continue;
          EXPECT_EQ(status.code(), StatusCode::kAborted);
          return;
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    self.runtime()->Shutdown("shutdown()", true);
    // The threads may still submit: that must fail without a crash.
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    stop = true;
    for (std::thread& thread : threads) thread.join();
  });
}

// A rank dies before it has submitted. It has no runtime here, so it does not
// answer.
TEST_P(DeathTest, DeathOfAnAwaitedRank) {
  Job job(GetParam());
  const int dead = job.size() - 1;
  job.NeverStart(dead);
  const std::string text =
      "rank " + std::to_string(dead) + " (" + HostOf(&job, dead) + ") died";
  job.Run([&](Rank& self) {
    std::vector<float> data = {1};
    const Pending pending = self.Allreduce("x", &data);
    if (self.rank() == 0) LoopbackKill(job.world(dead));
    EXPECT_EQ(pending.status().code(), StatusCode::kAborted);
    EXPECT_EQ(pending.status().message(), text);
    const Pending later = self.Allreduce("y", &data);
    EXPECT_EQ(later.status().code(), StatusCode::kAborted);
    EXPECT_EQ(later.status().message(), text);
  });
}

// An operation that fails on one rank ends the job on all of them in an orderly
// way.
TEST_P(DeathTest, FailureInsideAnOperationEndsTheJob) {
  Job job(GetParam());
  job.Run([&](Rank& self) {
    std::vector<float> data(10, 1);
    Entry entry = Rank::Plain(OpKind::kAllgather, "x", kWorldSet);
    entry.request.tensors.push_back({DType::kFloat32, {-1}});
    entry.tensors.push_back({data.data(), nullptr, 10});
    entry.rows = {10};
    entry.allocate = [](size_t, const std::vector<int64_t>&, void**) {
      return Internal("no memory");
    };
    const Status status = self.Submit(std::move(entry)).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("no memory"), std::string::npos);
    EXPECT_NE(status.message().find("allgather 'x'"), std::string::npos);
  });
}

// The same without a background thread.
TEST(Ends, FailureInsideAnOperationOfOneRank) {
  Job job({1});
  job.Run([](Rank& self) {
    Entry entry = Rank::Plain(OpKind::kAllgather, "x", kWorldSet);
    entry.request.tensors.push_back({DType::kFloat32, {-1}});
    entry.tensors.emplace_back();
    entry.rows = {0};
    entry.allocate = [](size_t, const std::vector<int64_t>&, void**) {
      return Internal("no memory");
    };
    const Pending pending = self.Submit(std::move(entry));
    ASSERT_TRUE(pending.done());
    EXPECT_EQ(pending.status().code(), StatusCode::kAborted);
    EXPECT_EQ(self.Barrier("b").status().code(), StatusCode::kAborted);
  });
}

}  // namespace
}  // namespace tf_hvd

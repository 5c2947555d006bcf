#include "tests/gpu/gpu_job.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <numeric>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

namespace tf_hvd {
namespace {

// The work of each rank, in a job without any faults in memory accesses.
void RunAll(GpuJob* job, const std::function<void(Rank&, Side&)>& body) {
  job->job.Run([&](Rank& rank) {
    Side side(job, &rank);
    body(rank, side);
  });
  job->ExpectNoFaults();
}

void ExpectOk(const Status& status) {
  EXPECT_TRUE(status.ok()) << status.message();
}

void ExpectSays(const Status& status, const std::string& words) {
  EXPECT_NE(status.message().find(words), std::string::npos)
      << status.message();
}

// An allreduce of equal floats in progress.
class Reduction {
 public:
  Reduction(Side* side, const std::string& name, size_t count, float mine,
            ReduceOp op = ReduceOp::kSum)
      : side_(side),
        count_(count),
        memory_(side->Tensor(std::vector<float>(count, mine))),
        pending_(
            side->Allreduce(name, memory_, static_cast<int64_t>(count), op)) {}

  void ExpectResult(float expected) {
    ExpectOk(pending_.status());
    EXPECT_EQ(side_->Values<float>(memory_, count_),
              std::vector<float>(count_, expected));
  }

 private:
  Side* const side_;
  const size_t count_;
  char* const memory_;
  const Pending pending_;
};

class GpuJobs : public ::testing::TestWithParam<bool> {};

TEST_P(GpuJobs, Allreduce) {
  for (const auto& [nodes, sum, mean] :
       std::vector<std::tuple<std::vector<int>, float, float>>{
           {{3}, 6, 2}, {{2, 2}, 10, 2.5}, {{1}, 1, 1}}) {
    const int ranks = std::accumulate(nodes.begin(), nodes.end(), 0);
    GpuJob job(ranks, 1, GetParam(), nodes);
    RunAll(&job, [&, sum = sum, mean = mean](Rank& rank, Side& side) {
      const auto mine = static_cast<float>(rank.rank() + 1);
      Reduction of_sum(&side, "sum", 5000, mine);
      Reduction of_mean(&side, "mean", 7, mine, ReduceOp::kAverage);
      of_sum.ExpectResult(sum);
      of_mean.ExpectResult(mean);
    });
    // A missing NCCL is reported once.
    const bool warns = !GetParam() && ranks > 1;
    ASSERT_EQ(job.warnings.size(), warns ? static_cast<size_t>(ranks) : 0u);
    for (const std::string& text : job.warnings) {
      EXPECT_EQ(
          text,
          "GPU tensors move through host memory, which is slower than NCCL: "
          "rank 2 (c) has no NCCL: why. Install "
          "nvidia-nccl-cu12, or set TF_HVD_NCCL_LIBRARY to the path of "
          "libnccl.so.2. If this is intended, set TF_HVD_NCCL=0");
    }
  }
}

TEST_P(GpuJobs, AllgatherOfDifferentRows) {
  GpuJob job(3, 3, GetParam());
  RunAll(&job, [](Rank& rank, Side& side) {
    const std::vector<int64_t> mine(static_cast<size_t>(rank.rank()) * 2,
                                    rank.rank());
    char* all = nullptr;
    ExpectOk(side.Allgather("rows", side.Tensor(mine),
                            static_cast<int64_t>(mine.size()), &all)
                 .status());
    ASSERT_NE(all, nullptr);
    EXPECT_EQ(side.Values<int64_t>(all, 6),
              (std::vector<int64_t>{1, 1, 2, 2, 2, 2}));
  });
}

INSTANTIATE_TEST_SUITE_P(, GpuJobs, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& with_nccl) {
                           return std::string(with_nccl.param
                                                  ? "ByNccl"
                                                  : "ThroughPinnedMemory");
                         });

// Reported by one rank per machine.
TEST(GpuJob, ManySmallTensorsOneByOneAreReportedOnce) {
  GpuJob job(2, 10);
  testing::internal::CaptureStderr();
  RunAll(&job, [](Rank&, Side& side) {
    char* const sum = side.Tensor(std::vector<float>(10, 0));
    for (int i = 0; i < 3 * 40; ++i) {
      ExpectOk(
          side.Allreduce("loose." + std::to_string(i % 40), sum, 10).status());
    }
  });
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string warning =
      "40 small tensors on a GPU are reduced individually";
  EXPECT_NE(said.find(warning), std::string::npos) << said;
  EXPECT_EQ(said.find(warning), said.rfind(warning)) << said;
}

// A tensor on the CPU on one rank, on a GPU on another: both get the error.
TEST(GpuJob, CpuAndGpuTensorsAreRefused) {
  GpuJob job(2, 7);
  RunAll(&job, [](Rank& rank, Side& side) {
    std::vector<float> values(4, 1);
    const Pending pending = rank.rank() == 0
                                ? rank.Allreduce("sum", &values)
                                : side.Allreduce("sum", side.Tensor(values), 4);
    EXPECT_EQ(pending.status().code(), StatusCode::kFailedPrecondition);
    ExpectSays(pending.status(), "kind of device");
  });
}

// A mixed job: ranks with a GPU reduce there in a separate set, and all ranks
// reduce on the CPU.
TEST(GpuJob, ARankWithoutADriverDoesNotBlockOthers) {
  GpuJob job(3, 13, /*with_nccl=*/true, {2, 1}, /*without_driver=*/2);
  job.job.Run([&](Rank& rank) {
    const Pending added = rank.AddSet("with GPUs", {0, 1});
    ExpectOk(added.status());
    std::vector<float> on_cpu(5, 1);
    ExpectOk(rank.Allreduce("cpu", &on_cpu).status());
    EXPECT_EQ(on_cpu, std::vector<float>(5, 3));
    if (rank.rank() == 2) return;
    Side side(&job, &rank);
    char* const sum = side.Tensor(std::vector<float>(2000, 1));
    Entry entry = side.EntryOf(OpKind::kAllreduce, "gpu", added.value());
    entry.request.reduce_op = ReduceOp::kSum;
    entry.request.tensors.push_back({DType::kFloat32, {2000}});
    entry.tensors.push_back({sum, sum, 2000});
    ExpectOk(rank.Submit(std::move(entry)).status());
    EXPECT_EQ(side.Values<float>(sum, 2000), std::vector<float>(2000, 2));
  });
  job.ExpectNoFaults();
}

TEST(GpuJob, AJoinedRankWithoutADriverGetsAnError) {
  GpuJob job(2, 14, /*with_nccl=*/true, {}, /*without_driver=*/0);
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    const Status status =
        rank.rank() == 0
            ? rank.Join().status()
            : side.Allreduce("sum", side.Tensor(std::vector<float>(9, 1)), 9)
                  .status();
    ExpectSays(status, "has no CUDA driver (libcuda.so.1)");
    EXPECT_EQ(status.message().find("bug in tf_hvd"), std::string::npos);
  });
}

// An error that NCCL detects later ends the job on all ranks, with NCCL's text.
TEST(GpuJob, AsynchronousErrorsEndTheJob) {
  GpuJob job(3, 9);
  std::promise<void> failed;
  auto has_failed = failed.get_future().share();
  RunAll(&job, [&](Rank& rank, Side& side) {
    char* const bucket = side.Tensor(std::vector<float>(100, 0));
    ExpectOk(side.Allreduce("first", bucket, 100).status());
    if (rank.rank() == 1) {
      job.nccl.FailAsync(1, 6);
      failed.set_value();
    }
    has_failed.wait();
    const Status status = side.Allreduce("second", bucket, 100).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    for (const char* words : {"allreduce 'second'", "remote process exited",
                              "said by a software NCCL"}) {
      ExpectSays(status, words);
    }
  });
  EXPECT_GT(job.nccl.aborts(), 0);
}

// NCCL does not return from an abort: the job still ends, and memory that may
// still be written to is kept.
TEST(GpuJob, AbortsThatHangAreGivenUp) {
  GpuJob job(2, 12, true, {}, -1, 300 * kMs);
  job.nccl.HangAborts(0);
  std::weak_ptr<int> kept;
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const bucket = side.Tensor(std::vector<float>(100, 0));
    ExpectOk(side.Allreduce("first", bucket, 100).status());
    if (rank.rank() == 1) {
      job.nccl.FailAsync(1, 6);
      EXPECT_FALSE(side.Allreduce("second", bucket, 100).status().ok());
      return;
    }
    Entry entry = side.EntryOf(OpKind::kAllreduce, "second");
    entry.request.tensors.push_back({DType::kFloat32, {100}});
    entry.tensors.push_back({bucket, bucket, 100});
    const auto held = std::make_shared<int>(0);
    entry.keepalive = held;
    kept = held;
    EXPECT_FALSE(rank.Submit(std::move(entry)).status().ok());
  });
  EXPECT_FALSE(kept.expired());
  job.nccl.Release();
  job.ExpectNoFaults();
}

TEST(GpuJob, OutOfMemoryErrorHasAFix) {
  GpuJob job(2, 11);
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const bucket = side.Tensor(std::vector<float>(100, 0));
    if (rank.rank() == 0) job.gpu.FailAllocation();
    ExpectOk(rank.Barrier("before").status());
    const Status status = side.Allreduce("first", bucket, 100).status();
    ExpectSays(status, "TF_FORCE_GPU_ALLOW_GROWTH");
    ExpectSays(status, "CUDA_ERROR_OUT_OF_MEMORY");
  });
}

}  // namespace
}  // namespace tf_hvd

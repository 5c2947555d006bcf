#include "tests/gpu/gpu_job.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace tf_hvd {
namespace {

class GpuJobs : public ::testing::TestWithParam<bool> {};

TEST_P(GpuJobs, Allreduce) {
  GpuJob job(3, 1, GetParam());
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    const auto mine = static_cast<float>(rank.rank() + 1);
    char* const sum = side.Tensor(std::vector<float>(5000, mine));
    char* const mean = side.Tensor(std::vector<float>(7, mine));
    const Pending one = side.Allreduce("sum", sum, 5000);
    const Pending two =
        side.Allreduce("mean", mean, 7, DType::kFloat32, ReduceOp::kAverage);
    ASSERT_TRUE(one.status().ok()) << one.status().message();
    ASSERT_TRUE(two.status().ok()) << two.status().message();
    EXPECT_EQ(side.Values<float>(sum, 5000), std::vector<float>(5000, 6));
    EXPECT_EQ(side.Values<float>(mean, 7), std::vector<float>(7, 2));
  });
  job.ExpectNoFaults();
}

TEST_P(GpuJobs, AMissingNcclIsToldOnce) {
  GpuJob job(3, 1, GetParam());
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const sum = side.Tensor(std::vector<float>(10, 1));
    for (const char* const name : {"first", "second"}) {
      const Pending one = side.Allreduce(name, sum, 10);
      ASSERT_TRUE(one.status().ok()) << one.status().message();
    }
  });
  ASSERT_EQ(job.warnings.size(), GetParam() ? 0u : 3u);
  for (const std::string& text : job.warnings) {
    EXPECT_EQ(text,
              "tensors on GPUs go through the host's memory, which is slower "
              "than NCCL: rank 2 (c) has no NCCL: why. Install "
              "nvidia-nccl-cu12, or name libnccl.so.2 by TF_HVD_NCCL_LIBRARY; "
              "TF_HVD_NCCL=0 says that it is meant so");
  }
}

TEST_P(GpuJobs, TwoNodes) {
  GpuJob job(4, 2, GetParam(), {2, 2});
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const sum = side.Tensor(std::vector<float>(3000, 1));
    const Pending one = side.Allreduce("sum", sum, 3000);
    ASSERT_TRUE(one.status().ok()) << one.status().message();
    EXPECT_EQ(side.Values<float>(sum, 3000), std::vector<float>(3000, 4));
  });
  job.ExpectNoFaults();
}

TEST_P(GpuJobs, AllgatherOfDifferentRows) {
  GpuJob job(3, 3, GetParam());
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    const std::vector<int64_t> mine(static_cast<size_t>(rank.rank()) * 2,
                                    rank.rank());
    char* all = nullptr;
    const Pending pending = side.Allgather(
        "rows", side.Tensor(mine), static_cast<int64_t>(mine.size()), &all);
    ASSERT_TRUE(pending.status().ok()) << pending.status().message();
    EXPECT_EQ(side.Values<int64_t>(all, 6),
              (std::vector<int64_t>{1, 1, 2, 2, 2, 2}));
  });
  job.ExpectNoFaults();
}

// It has zeros, in the memory of a device that it may never have used.
TEST_P(GpuJobs, JoinedRanksTakePart) {
  GpuJob job(3, 4, GetParam());
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    if (rank.rank() > 0) {
      char* const sum = side.Tensor(std::vector<float>(2000, 1));
      const Pending pending = side.Allreduce("sum", sum, 2000);
      ASSERT_TRUE(pending.status().ok()) << pending.status().message();
      EXPECT_EQ(side.Values<float>(sum, 2000), std::vector<float>(2000, 2));
      char* all = nullptr;
      const Pending rows = side.Allgather(
          "rows", side.Tensor(std::vector<int64_t>{rank.rank()}), 1, &all);
      ASSERT_TRUE(rows.status().ok()) << rows.status().message();
      EXPECT_EQ(side.Values<int64_t>(all, 2), (std::vector<int64_t>{1, 2}));
    }
    EXPECT_TRUE(rank.Join().status().ok());
  });
  job.ExpectNoFaults();
}

TEST_P(GpuJobs, OneRankAlone) {
  GpuJob job(1, 5, GetParam());
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const same = side.Tensor(std::vector<float>(10, 3));
    const Pending pending = side.Allreduce("sum", same, 10);
    ASSERT_TRUE(pending.status().ok()) << pending.status().message();
    EXPECT_EQ(side.Values<float>(same, 10), std::vector<float>(10, 3));
  });
  job.ExpectNoFaults();
}

// int16 is not among NCCL's types, and NCCL's Max drops NaN.
TEST_P(GpuJobs, WhatNcclCannotDo) {
  GpuJob job(2, 6, GetParam());
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const small = side.Tensor(std::vector<int16_t>(9, 5));
    const Pending sum = side.Allreduce("sum", small, 9, DType::kInt16);
    const float nan = std::numeric_limits<float>::quiet_NaN();
    char* const mixed = side.Tensor(std::vector<float>{
        rank.rank() == 0 ? nan : 1.0f, static_cast<float>(rank.rank())});
    const Pending max =
        side.Allreduce("max", mixed, 2, DType::kFloat32, ReduceOp::kMax);
    ASSERT_TRUE(sum.status().ok()) << sum.status().message();
    ASSERT_TRUE(max.status().ok()) << max.status().message();
    EXPECT_EQ(side.Values<int16_t>(small, 9), std::vector<int16_t>(9, 10));
    const auto largest = side.Values<float>(mixed, 2);
    EXPECT_TRUE(std::isnan(largest[0]));
    EXPECT_EQ(largest[1], 1);
  });
  job.ExpectNoFaults();
}

// By one rank of a machine.
TEST(GpuJob, ManySmallTensorsOneByOneAreToldOnce) {
  GpuJob job(2, 10);
  testing::internal::CaptureStderr();
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const sum = side.Tensor(std::vector<float>(10, 0));
    for (int i = 0; i < 3 * 40; ++i) {
      const Pending one =
          side.Allreduce("loose." + std::to_string(i % 40), sum, 10);
      ASSERT_TRUE(one.status().ok()) << one.status().message();
    }
  });
  const std::string said = testing::internal::GetCapturedStderr();
  const std::string told = "40 small tensors on a GPU are reduced one by one";
  EXPECT_NE(said.find(told), std::string::npos) << said;
  EXPECT_EQ(said.find(told), said.rfind(told)) << said;
}

INSTANTIATE_TEST_SUITE_P(, GpuJobs, ::testing::Bool(),
                         [](const ::testing::TestParamInfo<bool>& with_nccl) {
                           return std::string(with_nccl.param
                                                  ? "ByNccl"
                                                  : "ThroughPinnedMemory");
                         });

// A tensor on the CPU on one rank, on a GPU on another: both are told.
TEST(GpuJob, CpuAndGpuDoNotMeet) {
  GpuJob job(2, 7);
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    std::vector<float> values(4, 1);
    const Pending pending = rank.rank() == 0
                                ? rank.Allreduce("sum", &values)
                                : side.Allreduce("sum", side.Tensor(values), 4);
    EXPECT_EQ(pending.status().code(), StatusCode::kFailedPrecondition);
    EXPECT_NE(pending.status().message().find("kind of device"),
              std::string::npos)
        << pending.status().message();
  });
  job.ExpectNoFaults();
}

// A mixed job: those with a GPU reduce there in a set of their own, all of them
// on the CPU.
TEST(GpuJob, ARankWithoutADriverIsNoHindrance) {
  GpuJob job(3, 13, /*with_nccl=*/true, {2, 1}, /*without_driver=*/2);
  job.job.Run([&](Rank& rank) {
    const Pending added = rank.AddSet("with GPUs", {0, 1});
    ASSERT_TRUE(added.status().ok()) << added.status().message();
    std::vector<float> on_cpu(5, 1);
    ASSERT_TRUE(rank.Allreduce("cpu", &on_cpu).status().ok());
    EXPECT_EQ(on_cpu, std::vector<float>(5, 3));
    if (rank.rank() == 2) return;
    Side side(&job, &rank);
    char* const sum = side.Tensor(std::vector<float>(2000, 1));
    Entry entry = side.EntryOf(OpKind::kAllreduce, "gpu", added.value());
    entry.request.reduce_op = ReduceOp::kSum;
    entry.request.tensors.push_back({DType::kFloat32, {2000}});
    entry.tensors.push_back({sum, sum, 2000});
    const Pending pending = rank.Submit(std::move(entry));
    ASSERT_TRUE(pending.status().ok()) << pending.status().message();
    EXPECT_EQ(side.Values<float>(sum, 2000), std::vector<float>(2000, 2));
  });
  job.ExpectNoFaults();
}

TEST(GpuJob, AJoinedRankWithoutADriverIsTold) {
  GpuJob job(2, 14, /*with_nccl=*/true, {}, /*without_driver=*/0);
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    const Status status =
        rank.rank() == 0
            ? rank.Join().status()
            : side.Allreduce("sum", side.Tensor(std::vector<float>(9, 1)), 9)
                  .status();
    EXPECT_NE(status.message().find("has no CUDA driver (libcuda.so.1)"),
              std::string::npos)
        << status.message();
    EXPECT_EQ(status.message().find("bug in tf_hvd"), std::string::npos);
  });
}

// What NCCL finds out later ends the job on all ranks, with its words.
TEST(GpuJob, AsynchronousErrorsEndTheJob) {
  GpuJob job(3, 9);
  std::promise<void> failed;
  auto has_failed = failed.get_future().share();
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const bucket = side.Tensor(std::vector<float>(100, 0));
    ASSERT_TRUE(side.Allreduce("first", bucket, 100).status().ok());
    if (rank.rank() == 1) {
      job.nccl.FailAsync(1, 6);
      failed.set_value();
    }
    has_failed.wait();
    const Status status = side.Allreduce("second", bucket, 100).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    for (const char* words : {"allreduce 'second'", "remote process exited",
                              "said by a software NCCL"}) {
      EXPECT_NE(status.message().find(words), std::string::npos)
          << status.message();
    }
  });
  EXPECT_GT(job.nccl.aborts(), 0);
  job.ExpectNoFaults();
}

// NCCL does not come back from an abort: the job ends all the same, and the
// memory of what may still be written is kept.
TEST(GpuJob, AbortsThatHangAreGivenUp) {
  GpuJob job(2, 12, true, {}, -1, 300 * kMs);
  job.nccl.HangAborts(0);
  std::weak_ptr<int> kept;
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const bucket = side.Tensor(std::vector<float>(100, 0));
    ASSERT_TRUE(side.Allreduce("first", bucket, 100).status().ok());
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

// Its part never comes: the others' calls lie on their streams and do not end.
TEST(GpuJob, ADeadRankEndsTheJob) {
  GpuJob job(3, 10);
  std::atomic<int> ready{0};
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const bucket = side.Tensor(std::vector<float>(100, 0));
    ASSERT_TRUE(side.Allreduce("first", bucket, 100).status().ok());
    ++ready;
    while (ready < 3) std::this_thread::yield();
    if (rank.rank() == 2) {
      LoopbackKill(job.job.world(2));
      return;
    }
    const Status status = side.Allreduce("second", bucket, 100).status();
    EXPECT_EQ(status.code(), StatusCode::kAborted);
    EXPECT_NE(status.message().find("rank 2 (node0) died"), std::string::npos)
        << status.message();
  });
  job.ExpectNoFaults();
}

TEST(GpuJob, NoMemoryIsNamedWithItsCure) {
  GpuJob job(2, 11);
  job.job.Run([&](Rank& rank) {
    Side side(&job, &rank);
    char* const bucket = side.Tensor(std::vector<float>(100, 0));
    if (rank.rank() == 0) job.gpu.FailAllocation();
    ASSERT_TRUE(rank.Barrier("before").status().ok());
    const Status status = side.Allreduce("first", bucket, 100).status();
    EXPECT_NE(status.message().find("TF_FORCE_GPU_ALLOW_GROWTH"),
              std::string::npos)
        << status.message();
    EXPECT_NE(status.message().find("CUDA_ERROR_OUT_OF_MEMORY"),
              std::string::npos)
        << status.message();
  });
}

}  // namespace
}  // namespace tf_hvd

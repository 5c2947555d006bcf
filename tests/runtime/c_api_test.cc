// The C API of a single process: its results before init, after it, and with
// invalid settings.
#include "runtime/api/c_api.h"

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <thread>
#include <vector>

namespace tf_hvd {
namespace {

class CApiTest : public ::testing::Test {
 protected:
  // Removes the variables of a launcher that runs this test.
  void SetUp() override {
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE",
          "PMI_RANK", "SLURM_STEP_ID", "HOROVOD_FUSION_THRESHOLD"}) {
      unsetenv(name);
    }
  }
  void TearDown() override {
    unsetenv("HOROVOD_FUSION_THRESHOLD");
    tf_hvd_shutdown("shutdown()", 1);
  }

  int Init() { return Init({}); }
  int Init(const tf_hvd_init_options& options) {
    return tf_hvd_init(&options, error, sizeof(error));
  }
  int Add(const std::vector<int>& ranks, int* set) {
    return tf_hvd_add_process_set(ranks.data(), static_cast<int>(ranks.size()),
                                  set, error, sizeof(error));
  }
  bool ErrorHas(const std::string& part) const {
    return std::string(error).find(part) != std::string::npos;
  }

  char error[400] = "";
};

TEST_F(CApiTest, BeforeInit) {
  EXPECT_EQ(tf_hvd_is_initialized(), 0);
  EXPECT_EQ(tf_hvd_rank(), -1);
  EXPECT_EQ(tf_hvd_size(), -1);
  EXPECT_EQ(tf_hvd_local_rank(), -1);
  EXPECT_EQ(tf_hvd_local_size(), -1);
  EXPECT_EQ(tf_hvd_cross_rank(), -1);
  EXPECT_EQ(tf_hvd_cross_size(), -1);
  EXPECT_EQ(tf_hvd_is_homogeneous(), -1);
  EXPECT_EQ(tf_hvd_mpi_threads_supported(), -1);
  EXPECT_STREQ(tf_hvd_mpi_version(), "");
  EXPECT_EQ(tf_hvd_submitted_count(), -1);
  EXPECT_EQ(DefaultRuntime(), nullptr);
  EXPECT_NE(std::string(NotInitializedText()).find("hvd.init()"),
            std::string::npos);
  tf_hvd_shutdown("nothing to end", 1);
}

TEST_F(CApiTest, OneRank) {
  ASSERT_EQ(Init(), 0) << error;
  EXPECT_EQ(tf_hvd_is_initialized(), 1);
  EXPECT_EQ(tf_hvd_rank(), 0);
  EXPECT_EQ(tf_hvd_size(), 1);
  EXPECT_EQ(tf_hvd_local_rank(), 0);
  EXPECT_EQ(tf_hvd_local_size(), 1);
  EXPECT_EQ(tf_hvd_cross_rank(), 0);
  EXPECT_EQ(tf_hvd_cross_size(), 1);
  EXPECT_EQ(tf_hvd_is_homogeneous(), 1);
  EXPECT_EQ(tf_hvd_mpi_threads_supported(), -1);
  EXPECT_EQ(tf_hvd_submitted_count(), 0);
}

TEST_F(CApiTest, SecondInitKeepsTheRuntimeAndShutdownAllowsAnother) {
  ASSERT_EQ(Init(), 0) << error;
  const auto first = DefaultRuntime();
  ASSERT_EQ(Init(), 0);
  EXPECT_EQ(DefaultRuntime(), first);
  tf_hvd_shutdown("shutdown()", 1);
  EXPECT_EQ(tf_hvd_is_initialized(), 0);
  EXPECT_NE(std::string(tf_hvd_not_initialized_text()).find("shut down"),
            std::string::npos);
  ASSERT_EQ(Init(), 0) << error;
  EXPECT_NE(DefaultRuntime(), first);
}

TEST_F(CApiTest, RuntimeInUseOutlivesShutdown) {
  ASSERT_EQ(Init(), 0) << error;
  const auto held = DefaultRuntime();
  tf_hvd_shutdown("shutdown()", 1);
  EXPECT_EQ(held->topology().size, 1);
  Status status;
  Entry entry;
  entry.request.kind = OpKind::kBarrier;
  entry.name = "late";
  entry.done = Completion([&](const Status& got, int32_t) { status = got; });
  held->Submit(std::move(entry));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
}

// In a forked child, which reports its result as exit status.
TEST_F(CApiTest, ForkedChildCanQueryButNotCallCollectives) {
  ASSERT_EQ(Init(), 0) << error;
  EXPECT_STREQ(tf_hvd_forked_text(), "");
  const pid_t child = fork();
  if (child == 0) {
    Status status;
    Entry entry;
    entry.request.kind = OpKind::kBarrier;
    entry.name = "b";
    entry.done = Completion([&](const Status& got, int32_t) { status = got; });
    DefaultRuntime()->Submit(std::move(entry));
    tf_hvd_shutdown("exit", 1);
    const bool told =
        status.message().find("'b': process " + std::to_string(getpid())) ==
            0 &&
        std::string(tf_hvd_forked_text()).find("rank 0") != std::string::npos;
    const bool asked = tf_hvd_rank() == 0 && tf_hvd_size() == 1 &&
                       tf_hvd_process_set_ranks(0, nullptr, 0) == 1;
    _exit(told && asked ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tf_hvd_is_initialized(), 1);
  EXPECT_EQ(DefaultRuntime()->SubmittedCount(), 0);
}

TEST_F(CApiTest, InvalidSettingIsAnError) {
  setenv("HOROVOD_FUSION_THRESHOLD", "much", 1);
  EXPECT_EQ(Init(), static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_NE(std::string(error).find("HOROVOD_FUSION_THRESHOLD"),
            std::string::npos)
      << error;
  EXPECT_EQ(tf_hvd_is_initialized(), 0);
  char cut[10] = "";
  const tf_hvd_init_options plain = {};
  EXPECT_NE(tf_hvd_init(&plain, cut, sizeof(cut)), 0);
  EXPECT_EQ(std::string(cut), std::string(error).substr(0, 9));
  EXPECT_NE(tf_hvd_init(&plain, nullptr, 0), 0);
}

TEST_F(CApiTest, RanksArgumentWithoutALauncher) {
  tf_hvd_init_options options = {};
  const int ranks[] = {0, 1};
  options.ranks = ranks;
  for (const int count : {0, 2}) {
    options.rank_count = count;
    EXPECT_EQ(Init(options), static_cast<int>(StatusCode::kInvalidArgument));
    EXPECT_TRUE(ErrorHas("started without a launcher")) << error;
  }
  options.rank_count = 1;
  const int communicator = 0;
  options.communicator = &communicator;
  EXPECT_EQ(Init(options), static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_TRUE(ErrorHas("mpi4py")) << error;
  options.communicator = nullptr;
  EXPECT_EQ(Init(options), 0) << error;
  EXPECT_EQ(tf_hvd_size(), 1);
}

TEST_F(CApiTest, ProcessSetsAreAddedAndRemoved) {
  ASSERT_EQ(Init(), 0) << error;
  int set = -1;
  ASSERT_EQ(Add({0}, &set), 0) << error;
  int ranks[2] = {9, 9};
  EXPECT_EQ(tf_hvd_process_set_ranks(set, ranks, 2), 1);
  EXPECT_EQ(ranks[0], 0);
  EXPECT_EQ(ranks[1], 9);
  EXPECT_EQ(tf_hvd_process_set_ranks(set, nullptr, 0), 1);
  ASSERT_EQ(tf_hvd_remove_process_set(set, error, sizeof(error)), 0) << error;
  EXPECT_EQ(tf_hvd_process_set_ranks(set, ranks, 2), -1);
}

TEST_F(CApiTest, GatherRanks) {
  ASSERT_EQ(Init(), 0) << error;
  const int mine[] = {4, 2};
  int all[3] = {9, 9, 9};
  int length = 0;
  ASSERT_EQ(tf_hvd_gather_ranks(mine, 2, all, 2, &length, error, sizeof(error)),
            0)
      << error;
  EXPECT_EQ(length, 3);
  EXPECT_EQ(all[2], 9);
  ASSERT_EQ(tf_hvd_gather_ranks(mine, 2, all, 3, &length, error, sizeof(error)),
            0)
      << error;
  EXPECT_EQ(std::vector<int>(all, all + 3), (std::vector<int>{4, 2, -1}));
  ASSERT_EQ(
      tf_hvd_gather_ranks(nullptr, 0, all, 3, &length, error, sizeof(error)),
      0);
  EXPECT_EQ(length, 1);
  EXPECT_EQ(all[0], -1);
}

TEST_F(CApiTest, EagerNameAppliesOnceAndToItsThread) {
  EXPECT_EQ(TakeEagerName(), "");
  tf_hvd_set_eager_name("grad.0");
  std::thread([] { EXPECT_EQ(TakeEagerName(), ""); }).join();
  EXPECT_EQ(TakeEagerName(), "grad.0");
  EXPECT_EQ(TakeEagerName(), "");
  tf_hvd_set_eager_name("grad.1");
  tf_hvd_set_eager_name(nullptr);
  EXPECT_EQ(TakeEagerName(), "");
}

TEST_F(CApiTest, Tables) {
  EXPECT_STREQ(tf_hvd_dtype_name(7), "float32");
  EXPECT_STREQ(tf_hvd_dtype_name(10), "bfloat16");
  EXPECT_STREQ(tf_hvd_dtype_name(14), "complex128");
  EXPECT_EQ(tf_hvd_dtype_name(15), nullptr);
  EXPECT_EQ(tf_hvd_dtype_name(-1), nullptr);
  EXPECT_STREQ(tf_hvd_reduce_op_name(0), "Average");
  EXPECT_STREQ(tf_hvd_reduce_op_name(5), "Product");
  EXPECT_EQ(tf_hvd_reduce_op_name(6), nullptr);
  EXPECT_EQ(tf_hvd_is_reducible(7, 1), 1);  // a sum of float32
  EXPECT_EQ(tf_hvd_is_reducible(9, 0), 0);  // an average of bool
  EXPECT_EQ(tf_hvd_is_reducible(-1, 1), 0);
  EXPECT_EQ(tf_hvd_is_reducible(7, 6), 0);
  EXPECT_NE(
      std::string(tf_hvd_config_markdown()).find("HOROVOD_FUSION_THRESHOLD"),
      std::string::npos);
}

}  // namespace
}  // namespace tf_hvd

// The C API of a process that is alone: what Python sees before init, after it,
// and when the settings are wrong.
#include "runtime/c_api.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <string>
#include <thread>

namespace tf_hvd {
namespace {

class CApiTest : public ::testing::Test {
 protected:
  // A launcher that runs this test would count its own ranks.
  void SetUp() override {
    for (const char* name :
         {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "PMI_SIZE",
          "PMI_RANK", "SLURM_STEP_ID", "HOROVOD_FUSION_THRESHOLD"}) {
      unsetenv(name);
    }
  }
  void TearDown() override {
    unsetenv("HOROVOD_FUSION_THRESHOLD");
    tf_hvd_shutdown(nullptr);
  }

  int Init() { return tf_hvd_init("", "", error, sizeof(error)); }

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
  EXPECT_EQ(tf_hvd_executed_count(), -1);
  EXPECT_EQ(DefaultRuntime(), nullptr);
  EXPECT_NE(std::string(NotInitializedText()).find("hvd.init()"),
            std::string::npos);
  tf_hvd_shutdown("nothing to end");
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
  EXPECT_EQ(tf_hvd_executed_count(), 0);
}

TEST_F(CApiTest, SecondInitKeepsTheRuntimeAndShutdownAllowsAnother) {
  ASSERT_EQ(Init(), 0) << error;
  const auto first = DefaultRuntime();
  ASSERT_EQ(Init(), 0);
  EXPECT_EQ(DefaultRuntime(), first);
  tf_hvd_shutdown("shutdown()");
  EXPECT_EQ(tf_hvd_is_initialized(), 0);
  ASSERT_EQ(Init(), 0) << error;
  EXPECT_NE(DefaultRuntime(), first);
}

TEST_F(CApiTest, WhoHoldsTheRuntimeKeepsIt) {
  ASSERT_EQ(Init(), 0) << error;
  const auto held = DefaultRuntime();
  tf_hvd_shutdown("shutdown()");
  EXPECT_EQ(held->topology().size, 1);
  Status status;
  Entry entry;
  entry.record.kind = OpKind::kBarrier;
  entry.name = "late";
  entry.done = Completion([&](const Status& got, int32_t) { status = got; });
  held->Submit(std::move(entry));
  EXPECT_EQ(status.code(), StatusCode::kAborted);
}

TEST_F(CApiTest, WrongSettingIsAnError) {
  setenv("HOROVOD_FUSION_THRESHOLD", "much", 1);
  EXPECT_EQ(Init(), static_cast<int>(StatusCode::kInvalidArgument));
  EXPECT_NE(std::string(error).find("HOROVOD_FUSION_THRESHOLD"),
            std::string::npos)
      << error;
  EXPECT_EQ(tf_hvd_is_initialized(), 0);
  char cut[10] = "";
  EXPECT_NE(tf_hvd_init(nullptr, nullptr, cut, sizeof(cut)), 0);
  EXPECT_EQ(std::string(cut), std::string(error).substr(0, 9));
  EXPECT_NE(tf_hvd_init(nullptr, nullptr, nullptr, 0), 0);
}

TEST_F(CApiTest, EagerNameIsTakenOnceAndOnItsThread) {
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
  EXPECT_EQ(tf_hvd_dtype_name(11), nullptr);
  EXPECT_EQ(tf_hvd_dtype_name(-1), nullptr);
  EXPECT_STREQ(tf_hvd_reduce_op_name(0), "Average");
  EXPECT_STREQ(tf_hvd_reduce_op_name(5), "Product");
  EXPECT_EQ(tf_hvd_reduce_op_name(6), nullptr);
  EXPECT_NE(
      std::string(tf_hvd_config_markdown()).find("HOROVOD_FUSION_THRESHOLD"),
      std::string::npos);
}

}  // namespace
}  // namespace tf_hvd

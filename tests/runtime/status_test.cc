#include "base/status.h"

#include <gtest/gtest.h>

namespace tf_hvd {
namespace {

TEST(Status, Ok) {
  const Status ok;
  EXPECT_TRUE(ok.ok());
  EXPECT_EQ(ok.code(), StatusCode::kOk);
  EXPECT_EQ(ok.message(), "");
  EXPECT_TRUE(ok.WithContext("reading").ok());
}

TEST(Status, CodesAndTexts) {
  EXPECT_EQ(InvalidArgument("a").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(FailedPrecondition("a").code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(Aborted("a").code(), StatusCode::kAborted);
  EXPECT_EQ(Internal("a").code(), StatusCode::kInternal);
  EXPECT_FALSE(Internal("").ok());
  EXPECT_EQ(Aborted("gone").message(), "gone");
}

// The numbers go through the C API.
TEST(Status, NumbersOfCodes) {
  EXPECT_EQ(static_cast<int>(StatusCode::kInvalidArgument), 1);
  EXPECT_EQ(static_cast<int>(StatusCode::kFailedPrecondition), 2);
  EXPECT_EQ(static_cast<int>(StatusCode::kAborted), 3);
  EXPECT_EQ(static_cast<int>(StatusCode::kInternal), 4);
}

TEST(Status, ContextComesFirstAndKeepsTheCode) {
  const Status inner = Aborted("rank 3 died");
  const Status outer = inner.WithContext("allreduce 'g'");
  EXPECT_EQ(outer.code(), StatusCode::kAborted);
  EXPECT_EQ(outer.message(), "allreduce 'g': rank 3 died");
  EXPECT_EQ(inner.message(), "rank 3 died");
}

TEST(Status, ReturnIfErrorReturnsTheFirst) {
  int calls = 0;
  const auto three = [&](int fails) -> Status {
    for (int i = 0; i < 3; ++i) {
      ++calls;
      TF_HVD_RETURN_IF_ERROR(i == fails ? Internal("x") : Status::Ok());
    }
    return Status::Ok();
  };
  EXPECT_FALSE(three(1).ok());
  EXPECT_EQ(calls, 2);
  EXPECT_TRUE(three(3).ok());
  EXPECT_EQ(calls, 5);
}

}  // namespace
}  // namespace tf_hvd

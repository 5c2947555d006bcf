#include "base/status.h"

#include <gtest/gtest.h>

namespace tf_hvd {
namespace {

TEST(Status, ContextComesFirstAndKeepsTheCode) {
  const Status inner = Aborted("rank 3 died");
  const Status outer = inner.WithContext("allreduce 'g'");
  EXPECT_EQ(outer.code(), StatusCode::kAborted);
  EXPECT_EQ(outer.message(), "allreduce 'g': rank 3 died");
  EXPECT_EQ(inner.message(), "rank 3 died");
}

}  // namespace
}  // namespace tf_hvd

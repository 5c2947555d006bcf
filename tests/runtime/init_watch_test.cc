// The text of the warning while init waits for other ranks.
#include "runtime/api/init_watch.h"

#include <gtest/gtest.h>

namespace tf_hvd {
namespace {

TEST(InitWatchTest, NamesTheNumberOfMissingRanks) {
  EXPECT_EQ(DescribeWait(3, 4, 30),
            "init() has waited 30 s for 3 other ranks of 4. All ranks of the "
            "job must call hvd.init()");
  EXPECT_EQ(DescribeWait(1, 2, 5),
            "init() has waited 5 s for 1 other rank of 2. All ranks of the job "
            "must call hvd.init()");
}

}  // namespace
}  // namespace tf_hvd

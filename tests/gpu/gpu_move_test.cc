#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "runtime/transport/gpu/move.h"

namespace tf_hvd {
namespace {

// An address that is never read.
char* At(uintptr_t address) { return reinterpret_cast<char*>(address); }

std::string CopyOf(uintptr_t input, uintptr_t output, int64_t bytes) {
  MoveBuilder builder{Scaling()};
  builder.Add(At(4096), At(8192), 64);  // divisible by any unit
  builder.Add(At(input), At(output), bytes);
  return builder.Build().kernel;
}

TEST(GpuMove, CopiesInTheWidestUnitThatDividesAllRows) {
  EXPECT_EQ(CopyOf(0x1000, 0x2000, 16), "tf_hvd_copy_8");
  EXPECT_EQ(CopyOf(0x1008, 0x2008, 24), "tf_hvd_copy_8");
  EXPECT_EQ(CopyOf(0x1000, 0x2000, 12), "tf_hvd_copy_4");
  EXPECT_EQ(CopyOf(0x1004, 0x2000, 16), "tf_hvd_copy_4");
  EXPECT_EQ(CopyOf(0x1000, 0x2002, 16), "tf_hvd_copy_2");
  EXPECT_EQ(CopyOf(0x1000, 0x2000, 6), "tf_hvd_copy_2");
  EXPECT_EQ(CopyOf(0x1000, 0x2000, 7), "tf_hvd_copy_1");
  EXPECT_EQ(CopyOf(0x1003, 0x2003, 8), "tf_hvd_copy_1");
  EXPECT_EQ(CopyOf(0, 0x2000, 16), "tf_hvd_copy_8");  // zeros
}

TEST(GpuMove, TensorsWithoutAMoveHaveNoRow) {
  MoveBuilder copy{Scaling()};
  copy.Add(At(0x1000), nullptr, 8);
  copy.Add(At(0x1000), At(0x2000), 0);
  copy.Add(At(0x1000), At(0x1000), 8);
  EXPECT_TRUE(copy.Build().empty());
  MoveBuilder scale({DType::kFloat32, 2.0, 1.0});
  scale.Add(At(0x1000), At(0x1000), 8);
  EXPECT_EQ(scale.Build().rows.size(), 1u);
}

TEST(GpuMove, ABlockMovesATileOfBytes) {
  MoveBuilder builder{Scaling()};
  builder.Add(At(0x10000), At(0x20000), 3 * GpuMove::kTileBytes);
  EXPECT_EQ(builder.Build().blocks(), 3u);
  EXPECT_EQ(builder.Build().arguments.tile * 8, GpuMove::kTileBytes);
  builder.Add(At(0x1000), At(0x2000), 8);
  EXPECT_EQ(builder.Build().blocks(), 4u);
}

TEST(GpuMove, FactorsOf1AreACopyExceptForBools) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const Scaling scaling = {static_cast<DType>(i), 1.0, 1.0};
    EXPECT_EQ(scaling.needed(), scaling.dtype == DType::kBool);
  }
  EXPECT_TRUE((Scaling{DType::kInt32, 1.0, 2.0}).needed());
  EXPECT_TRUE((Scaling{DType::kInt32, 2.0, 1.0}).needed());
}

}  // namespace
}  // namespace tf_hvd

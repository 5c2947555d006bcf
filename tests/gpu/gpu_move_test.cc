#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/transport/gpu/move.h"

namespace tf_hvd {
namespace {

// An address that nobody looks at.
char* At(uintptr_t address) { return reinterpret_cast<char*>(address); }

std::string CopyOf(uintptr_t input, uintptr_t output, int64_t bytes) {
  MoveBuilder builder{Scaling()};
  builder.Add(At(4096), At(8192), 64);  // which any unit divides
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

TEST(GpuMove, RowsEndInUnits) {
  MoveBuilder builder{Scaling()};
  builder.Add(At(0x1000), At(0x2000), 40);
  builder.Add(nullptr, At(0x3000), 8);
  builder.Add(At(0x4000), At(0x5000), 12);
  const GpuMove move = builder.Build();
  EXPECT_EQ(move.kernel, "tf_hvd_copy_4");
  ASSERT_EQ(move.rows.size(), 3u);
  EXPECT_EQ(move.rows[0].end, 10);
  EXPECT_EQ(move.rows[1].input, nullptr);
  EXPECT_EQ(move.rows[1].output, At(0x3000));
  EXPECT_EQ(move.rows[1].end, 12);
  EXPECT_EQ(move.rows[2].input, At(0x4000));
  EXPECT_EQ(move.rows[2].end, 15);
  EXPECT_EQ(move.arguments.row_count, 3);
  EXPECT_EQ(move.arguments.total, 15);
}

TEST(GpuMove, WhatGoesNowhereOrStaysIsNoRow) {
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

struct ScaleRow {
  Scaling scaling;
  const char* kernel;
  double factor;
  double divisor;
};

TEST(GpuMove, FactorsAndDivisorsGoToTheKernelOfTheType) {
  for (const ScaleRow& row : std::vector<ScaleRow>{
           {{DType::kInt64, 3.0, 4.0}, "tf_hvd_scale_int64", 3.0, 4.0},
           {{DType::kUint8, 1.0, 7.0}, "tf_hvd_scale_uint8", 1.0, 7.0},
           {{DType::kFloat32, 1.0, 4.0}, "tf_hvd_scale_float32", 1.0, 4.0},
           {{DType::kFloat64, 1.0, 3.0}, "tf_hvd_scale_float64", 1.0, 3.0},
           {{DType::kFloat16, 2.0, 8.0}, "tf_hvd_scale_float16", 2.0, 8.0},
           {{DType::kBfloat16, 5.0, 1.0}, "tf_hvd_scale_bfloat16", 5.0, 1.0},
           {{DType::kComplex64, 1.0, 2.0}, "tf_hvd_scale_float32", 1.0, 2.0},
           {{DType::kComplex128, 3.0, 2.0}, "tf_hvd_scale_float64", 3.0, 2.0},
           {{DType::kBool, 1.0, 1.0}, "tf_hvd_scale_bool", 1.0, 1.0},
       }) {
    SCOPED_TRACE(row.kernel);
    MoveBuilder builder(row.scaling);
    builder.Add(At(0x1000), At(0x2000), 64);
    const GpuMove move = builder.Build();
    EXPECT_EQ(move.kernel, row.kernel);
    EXPECT_EQ(move.arguments.factor, row.factor);
    EXPECT_EQ(move.arguments.divisor, row.divisor);
    const bool two_parts = IsComplex(row.scaling.dtype);
    const auto part =
        static_cast<int64_t>(SizeOf(row.scaling.dtype)) / (two_parts ? 2 : 1);
    EXPECT_EQ(move.arguments.total, 64 / part);
    EXPECT_EQ(move.arguments.tile, GpuMove::kTileBytes / part);
  }
}

TEST(GpuMove, FactorsOf1AreACopyButOfBools) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const Scaling scaling = {static_cast<DType>(i), 1.0, 1.0};
    EXPECT_EQ(scaling.needed(), scaling.dtype == DType::kBool);
  }
  EXPECT_TRUE((Scaling{DType::kInt32, 1.0, 2.0}).needed());
  EXPECT_TRUE((Scaling{DType::kInt32, 2.0, 1.0}).needed());
}

}  // namespace
}  // namespace tf_hvd

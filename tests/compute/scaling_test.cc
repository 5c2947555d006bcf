// Factors and averages of numbers of each type (compute/scaling.h).
#include <gtest/gtest.h>

#include <cmath>
#include <complex>
#include <cstdint>
#include <limits>
#include <vector>

#include "compute/buffer_ops.h"
#include "compute/half_float.h"

namespace tf_hvd {
namespace {

TEST(Scaling, IntegersSaturateWhenScaled) {
  const std::vector<int64_t> input = {std::numeric_limits<int64_t>::max(),
                                      std::numeric_limits<int64_t>::min(), -7};
  std::vector<int64_t> result(3);
  LoadAccumulator(DType::kInt64, result.data(), input.data(), 3, 2.0);
  EXPECT_EQ(result, (std::vector<int64_t>{input[0], input[1], -14}));
  StoreAccumulator(DType::kInt64, result.data(), input.data(), 3, 0.5);
  EXPECT_EQ(result[2], -3);  // toward zero
  LoadAccumulator(DType::kInt64, result.data(), input.data(), 3, std::nan(""));
  EXPECT_EQ(result, (std::vector<int64_t>{0, 0, 0}));
}

// 49 * (1.0 / 49) is less than 1.
TEST(Scaling, AverageOfEqualIntegersIsThatInteger) {
  for (int32_t count = 1; count <= 300; ++count) {
    const int32_t sums[] = {count, -7 * count, 0};
    int32_t averages[3];
    StoreAccumulator(DType::kInt32, averages, sums, 3, 1.0, count);
    EXPECT_EQ(averages[0], 1) << count;
    EXPECT_EQ(averages[1], -7) << count;
    EXPECT_EQ(averages[2], 0) << count;
  }
}

// 41 * (1.0f / 41) is also less than 1.
template <typename T>
void CheckAverageOfEqual(DType dtype, const std::vector<T>& numbers) {
  for (int count = 1; count <= 300; ++count) {
    for (const T& number : numbers) {
      const T sum = number * static_cast<float>(count);
      T average{};
      StoreAccumulator(dtype, &average, &sum, 1, 1.0, count);
      EXPECT_EQ(average, number) << NameOf(dtype) << " " << count;
    }
  }
}

TEST(Scaling, AverageOfEqualNumbersIsThatNumber) {
  CheckAverageOfEqual<float>(DType::kFloat32, {1.0f, -0.375f});
  CheckAverageOfEqual<double>(DType::kFloat64, {1.0, -0.375});
  CheckAverageOfEqual<std::complex<float>>(DType::kComplex64, {{1.0f, -2.5f}});
  const float sum = 41.0f;  // a sum of halves, in the type of the partial sums
  uint16_t half = 0;
  StoreAccumulator(DType::kFloat16, &half, &sum, 1, 1.0, 41.0);
  EXPECT_EQ(HalfToFloat(half), 1.0f);
  StoreAccumulator(DType::kBfloat16, &half, &sum, 1, 1.0, 41.0);
  EXPECT_EQ(BfloatToFloat(half), 1.0f);
}

TEST(Scaling, FactorsAreRoundedToTheComputationType) {
  const double factor = 0.1;
  const float number = 9.0f;
  ASSERT_NE(number * 0.1f, static_cast<float>(number * factor));
  float result = 0;
  LoadAccumulator(DType::kFloat32, &result, &number, 1, factor);
  EXPECT_EQ(result, number * 0.1f);
  StoreAccumulator(DType::kFloat32, &result, &number, 1, factor, 3.0);
  EXPECT_EQ(result, number * 0.1f / 3.0f);
  const double wide = 3.14159;
  double product = 0;
  LoadAccumulator(DType::kFloat64, &product, &wide, 1, factor);
  EXPECT_EQ(product, wide * factor);
  // In float32, 0.7 is less and the product is 6.
  const int32_t ten = 10;
  int32_t seven = 0;
  LoadAccumulator(DType::kInt32, &seven, &ten, 1, 0.7);
  EXPECT_EQ(seven, 7);
}

TEST(Scaling, BoolIsNotDivided) {
  const uint8_t yes = 1;
  uint8_t result = 0;
  StoreAccumulator(DType::kBool, &result, &yes, 1, 1.0, 3.0);
  EXPECT_EQ(result, 1);
}

// If both give the same bits, including denormals, the cheaper one is used.
TEST(Scaling, AverageIsAQuotientOrAnEqualProduct) {
  ReduceOptions options;
  options.op = ReduceOp::kAverage;
  const ReduceOptions of_three = AverageAsSum(options, 3);
  EXPECT_EQ(of_three.op, ReduceOp::kSum);
  EXPECT_EQ(of_three.postscale, 1.0);
  EXPECT_EQ(of_three.divisor, 3.0);
  const ReduceOptions of_four = AverageAsSum(options, 4);
  EXPECT_EQ(of_four.postscale, 0.25);
  EXPECT_EQ(of_four.divisor, 1.0);
  for (const float number : {1e-45f, 3e-45f, 1.17e-38f, 3.4e38f, 0.1f, -7.0f}) {
    EXPECT_EQ(number * 0.25f, number / 4.0f);
  }
  options.postscale = 0.1;
  EXPECT_EQ(AverageAsSum(options, 4).postscale, 0.1);
  EXPECT_EQ(AverageAsSum(options, 4).divisor, 4.0);
}

}  // namespace
}  // namespace tf_hvd

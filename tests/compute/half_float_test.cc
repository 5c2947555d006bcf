// Conversions of half precisions against IEEE 754's, by the processor: a GPU's
// instructions (cvt.rn.f16.f32 and so on) are defined to give the same bits.
#include "compute/half_float.h"

#include <gtest/gtest.h>
#include <immintrin.h>

#include <cmath>
#include <cstdint>

namespace tf_hvd {
namespace {

// Of all patterns of 32 bits: leaves out most, but no exponent, and no way to
// round.
constexpr uint64_t kStride = 7;

__attribute__((target("f16c"))) uint16_t NarrowedByIeee(float value) {
  return static_cast<uint16_t>(
      _mm_extract_epi16(_mm_cvtps_ph(_mm_set_ss(value), 0), 0));
}

__attribute__((target("f16c"))) float WidenedByIeee(uint16_t half) {
  return _mm_cvtss_f32(_mm_cvtph_ps(_mm_set1_epi16(static_cast<short>(half))));
}

TEST(HalfFloat, IsRoundedAsIeeeRounds) {
  if (!__builtin_cpu_supports("f16c")) GTEST_SKIP() << "no F16C";
  uint64_t differ = 0;
  for (uint64_t bits = 0; bits >> 32 == 0; bits += kStride) {
    const float value = FloatOfBits(static_cast<uint32_t>(bits));
    if (std::isnan(value)) continue;  // a GPU has one NaN
    differ += FloatToHalf(value) != NarrowedByIeee(value) ? 1 : 0;
  }
  EXPECT_EQ(differ, 0u);
}

TEST(HalfFloat, IsWidenedExactly) {
  if (!__builtin_cpu_supports("f16c")) GTEST_SKIP() << "no F16C";
  for (uint32_t half = 0; half < 0x10000; ++half) {
    const auto stored = static_cast<uint16_t>(half);
    const float value = HalfToFloat(stored);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(WidenedByIeee(stored)));
    } else {
      EXPECT_EQ(BitsOfFloat(value), BitsOfFloat(WidenedByIeee(stored)));
    }
  }
}

// The nearer of the two bfloat16 that a float lies between, the even one if
// they are as near: in exact arithmetic.
uint16_t NearestBfloat(float value) {
  const auto low = static_cast<uint16_t>(BitsOfFloat(value) >> 16);
  const auto high = static_cast<uint16_t>(low + 1);  // away from zero
  const double magnitude = std::fabs(static_cast<double>(value));
  const auto distance_to = [&](uint16_t bfloat) {
    const float to = BfloatToFloat(bfloat);
    // What follows the largest would have the next exponent.
    const double number = std::isinf(to) ? 0x1p128 : std::fabs(double{to});
    return std::fabs(number - magnitude);
  };
  const double below = distance_to(low);
  const double above = distance_to(high);
  if (below != above) return below < above ? low : high;
  return low % 2 == 0 ? low : high;
}

TEST(Bfloat, IsRoundedToTheNearestAndEven) {
  uint64_t differ = 0;
  for (uint64_t bits = 0; bits >> 32 == 0; bits += 61 * kStride) {
    const float value = FloatOfBits(static_cast<uint32_t>(bits));
    if (!std::isfinite(value)) continue;
    differ += FloatToBfloat(value) != NearestBfloat(value) ? 1 : 0;
  }
  EXPECT_EQ(differ, 0u);
}

}  // namespace
}  // namespace tf_hvd

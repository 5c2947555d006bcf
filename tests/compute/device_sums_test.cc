// Runs the kernels of device_sums.h on the host, block by block and thread by
// thread.
#include "compute/device_sums.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/software_sums.h"

namespace tf_hvd {
namespace {

// `vectors` are of `count` elements each.
template <typename T>
std::vector<T> Launch(const std::string& kernel, const std::vector<T>& vectors,
                      size_t count, int64_t blocks, int threads) {
  // values that differ from the expected ones
  std::vector<T> sums(count, T{77});
  const SumArguments arguments{vectors.data(), sums.data(),
                               static_cast<int64_t>(vectors.size() / count),
                               static_cast<int64_t>(count)};
  for (const SoftwareSums& one : SoftwareSumsAll()) {
    if (one.name != kernel) continue;
    EXPECT_EQ(one.element_bytes, sizeof(T));
    for (int64_t block = blocks - 1; block >= 0; --block) {
      for (int thread = 0; thread < threads; ++thread) {
        one.block(arguments, block, blocks, thread, threads);
      }
    }
    return sums;
  }
  ADD_FAILURE() << "no kernel named " << kernel;
  return sums;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Random bits for integers; for floats, numbers with sums that round.
template <typename T>
void CheckRandom(const std::string& kernel) {
  constexpr size_t kRanks = 7;
  constexpr size_t kCount = 300;
  std::mt19937_64 random(3);
  std::vector<T> vectors(kRanks * kCount);
  for (T& value : vectors) {
    value = static_cast<T>(random());
    if constexpr (!std::numeric_limits<T>::is_integer) value /= T{3e17};
  }
  std::vector<T> expected(kCount);
  for (size_t i = 0; i < vectors.size(); ++i) {
    T& sum = expected[i % kCount];
    sum = static_cast<T>(sum + vectors[i]);
  }
  for (const int threads : {1, 32, 256}) {
    for (const int64_t blocks : {1, 2, 400}) {
      const auto sums = Launch(kernel, vectors, kCount, blocks, threads);
      EXPECT_TRUE(SameBits(sums, expected))
          << blocks << " blocks of " << threads;
    }
  }
}

TEST(DeviceSums, OfUint8) { CheckRandom<uint8_t>("tf_hvd_sum_uint8"); }
TEST(DeviceSums, OfUint16) { CheckRandom<uint16_t>("tf_hvd_sum_uint16"); }
TEST(DeviceSums, OfUint32) { CheckRandom<uint32_t>("tf_hvd_sum_uint32"); }
TEST(DeviceSums, OfUint64) { CheckRandom<uint64_t>("tf_hvd_sum_uint64"); }
TEST(DeviceSums, OfFloat32) { CheckRandom<float>("tf_hvd_sum_float32"); }
TEST(DeviceSums, OfFloat64) { CheckRandom<double>("tf_hvd_sum_float64"); }

// 1e8 absorbs each 1 that is added to it, so the result depends on the order.
TEST(DeviceSums, VectorsAreAddedInTheirOrder) {
  for (size_t ranks = 2; ranks < 12; ++ranks) {
    std::vector<float> first(ranks, 1.0f);
    first.front() = 1e8f;
    EXPECT_EQ(Launch("tf_hvd_sum_float32", first, 1, 1, 32)[0], 1e8f);
    std::vector<float> last(ranks, 1e7f);
    last.back() = -1e7f * static_cast<float>(ranks - 1);
    EXPECT_EQ(Launch("tf_hvd_sum_float32", last, 1, 1, 32)[0], 0.0f);
  }
}

TEST(DeviceSums, NegativeZerosAreAddedToZero) {
  const std::vector<float> zero = {-0.0f};
  EXPECT_FALSE(std::signbit(Launch("tf_hvd_sum_float32", zero, 1, 1, 32)[0]));
}

}  // namespace
}  // namespace tf_hvd

// The kernels of device_sums.h on the host, block by block and thread by
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

// Rows in the order of their sums.
struct Listed {
  std::vector<int64_t> order;
  std::vector<int64_t> ends;
};

Listed List(const std::vector<int64_t>& places, int64_t count) {
  Listed listed;
  for (int64_t place = 0; place < count; ++place) {
    for (size_t row = 0; row < places.size(); ++row) {
      if (places[row] == place) {
        listed.order.push_back(static_cast<int64_t>(row));
      }
    }
    listed.ends.push_back(static_cast<int64_t>(listed.order.size()));
  }
  return listed;
}

// `sums` gets its size, and other values than those that are due.
template <typename T>
SumRowsArguments ArgumentsFor(const std::vector<T>& values,
                              const Listed& listed, int64_t columns,
                              std::vector<T>* sums) {
  sums->assign(listed.ends.size() * static_cast<size_t>(columns), T{77});
  SumRowsArguments arguments{};
  arguments.values = values.data();
  arguments.order = listed.order.data();
  arguments.ends = listed.ends.data();
  arguments.sums = sums->data();
  arguments.rows = static_cast<int64_t>(values.size()) / columns;
  arguments.sum_count = static_cast<int64_t>(listed.ends.size());
  arguments.columns = columns;
  return arguments;
}

template <typename T>
std::vector<T> Launch(const std::string& kernel, const std::vector<T>& values,
                      const Listed& listed, int64_t columns, int64_t blocks,
                      int threads) {
  std::vector<T> sums;
  const SumRowsArguments arguments =
      ArgumentsFor(values, listed, columns, &sums);
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
  ADD_FAILURE() << "there is no " << kernel;
  return sums;
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

// Any bits, for integers, and numbers whose sums round.
template <typename T>
void CheckRandom(const std::string& kernel) {
  constexpr int64_t kRows = 300;
  constexpr int64_t kColumns = 7;
  constexpr int64_t kCount = 50;
  std::mt19937_64 random(3);
  std::vector<int64_t> places(kRows);
  for (int64_t& place : places) {
    // Some have no rows, some one, some many.
    place = static_cast<int64_t>(random() % 8 == 0 ? 11 : random() % 40);
  }
  std::vector<T> values(kRows * kColumns);
  for (T& value : values) {
    value = static_cast<T>(random());
    if constexpr (!std::numeric_limits<T>::is_integer) value /= T{3e17};
  }
  std::vector<T> expected(kCount * kColumns);
  for (size_t row = 0; row < places.size(); ++row) {
    for (size_t i = 0; i < kColumns; ++i) {
      T& sum = expected[static_cast<size_t>(places[row]) * kColumns + i];
      sum = static_cast<T>(sum + values[row * kColumns + i]);
    }
  }
  for (const int threads : {1, 32, 256}) {
    for (const int64_t blocks : {1, 2, 400}) {
      const auto sums = Launch(kernel, values, List(places, kCount), kColumns,
                               blocks, threads);
      EXPECT_TRUE(SameBits(sums, expected))
          << blocks << " blocks of " << threads;
    }
  }
}

TEST(DeviceSums, OfUint8) { CheckRandom<uint8_t>("tf_hvd_sum_rows_uint8"); }
TEST(DeviceSums, OfUint16) { CheckRandom<uint16_t>("tf_hvd_sum_rows_uint16"); }
TEST(DeviceSums, OfUint32) { CheckRandom<uint32_t>("tf_hvd_sum_rows_uint32"); }
TEST(DeviceSums, OfUint64) { CheckRandom<uint64_t>("tf_hvd_sum_rows_uint64"); }
TEST(DeviceSums, OfFloat32) { CheckRandom<float>("tf_hvd_sum_rows_float32"); }
TEST(DeviceSums, OfFloat64) { CheckRandom<double>("tf_hvd_sum_rows_float64"); }

// 1e8 swallows each 1 that is added to it, so that the order shows.
TEST(DeviceSums, RowsAreAddedInTheirOrder) {
  for (size_t rows = 2; rows < 12; ++rows) {
    std::vector<float> values(rows, 1.0f);
    values.front() = 1e8f;
    Listed listed = List(std::vector<int64_t>(rows, 0), 1);
    EXPECT_EQ(Launch("tf_hvd_sum_rows_float32", values, listed, 1, 1, 32)[0],
              1e8f);
    std::vector<float> last(rows, 1e7f);
    last.back() = -1e7f * static_cast<float>(rows - 1);
    EXPECT_EQ(Launch("tf_hvd_sum_rows_float32", last, listed, 1, 1, 32)[0],
              0.0f);
  }
}

TEST(DeviceSums, NegativeZerosAreAddedToZero) {
  const auto sums = Launch("tf_hvd_sum_rows_float32", std::vector<float>{-0.0f},
                           List({0}, 1), 1, 1, 32);
  EXPECT_FALSE(std::signbit(sums[0]));
}

// Numbers that lead out of the memory are not followed.
TEST(DeviceSums, RowsThatAreNotThereAreZeros) {
  const std::vector<double> values = {1, 2, 4};
  const Listed beyond = {{0, -1, int64_t{1} << 40}, {2, 90}};
  const auto sums = Launch("tf_hvd_sum_rows_float64", values, beyond, 1, 1, 32);
  EXPECT_EQ(sums, (std::vector<double>{1, 0}));
  const Listed backwards = {{0, 1, 2}, {-5, 1}};
  EXPECT_EQ(Launch("tf_hvd_sum_rows_float64", values, backwards, 1, 1, 32),
            (std::vector<double>{0, 1}));
}

}  // namespace
}  // namespace tf_hvd

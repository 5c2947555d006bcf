// The kernels of device_adasum.h on the host, block by block and thread by
// thread.
#include "compute/device_adasum.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/gpu/software_adasum.h"

namespace tf_hvd {
namespace {

constexpr double kUntouched = -77.0;

// Vectors of several tensors, one behind the other, and what a launch needs.
template <typename T>
class Vectors {
 public:
  Vectors(const std::vector<int64_t>& counts, int64_t tile) {
    for (const int64_t count : counts) total_ += count;
    a.resize(static_cast<size_t>(total_));
    b.resize(a.size());
    output.resize(a.size(), T{5});
    int64_t at = 0;
    for (const int64_t count : counts) {
      tiles_ += (count + tile - 1) / tile;
      rows_.push_back(
          {a.data() + at, b.data() + at, output.data() + at, count, tiles_});
      at += count;
    }
    partials.resize(static_cast<size_t>(tiles_),
                    {kUntouched, kUntouched, kUntouched});
    products.resize(counts.size(), {kUntouched, kUntouched, kUntouched});
    arguments_.rows = rows_.data();
    arguments_.row_count = static_cast<int64_t>(rows_.size());
    arguments_.tile = tile;
    arguments_.partials = partials.data();
    arguments_.products = products.data();
  }
  Vectors(const Vectors&) = delete;
  Vectors& operator=(const Vectors&) = delete;

  void Launch(const std::string& kernel, int64_t blocks, int threads,
              bool backwards) {
    const SoftwareAdasum* const found = FindSoftwareAdasum(kernel);
    ASSERT_NE(found, nullptr) << kernel;
    for (int64_t block = 0; block < blocks; ++block) {
      found->block(arguments_, block, threads, backwards);
    }
  }
  void Multiply(int threads, bool backwards) {
    Launch("tf_hvd_dot_" + Suffix(), tiles_, threads, backwards);
    Launch("tf_hvd_fold_products", arguments_.row_count, threads, backwards);
  }
  void Combine(int threads, bool backwards) {
    Launch("tf_hvd_combine_" + Suffix(), tiles_, threads, backwards);
  }
  AdasumArguments* arguments() { return &arguments_; }
  std::vector<AdasumRow>* rows() { return &rows_; }

  std::vector<T> a;
  std::vector<T> b;
  std::vector<T> output;
  std::vector<AdasumProducts> partials;
  std::vector<AdasumProducts> products;

 private:
  static std::string Suffix() {
    return sizeof(T) == sizeof(float) ? "float32" : "float64";
  }

  std::vector<AdasumRow> rows_;
  int64_t total_ = 0;
  int64_t tiles_ = 0;
  AdasumArguments arguments_{};
};

const std::vector<int64_t> kCounts = {0, 1, 300, 0, 64, 65, 1000, 0};

// Sums of whole numbers, which no order rounds.
template <typename T>
void CheckWholeNumbers() {
  for (const int threads : {1, 32, 256}) {
    for (const bool backwards : {false, true}) {
      std::mt19937 random(5);
      Vectors<T> all(kCounts, 64);
      for (T& value : all.a) value = static_cast<T>(random() % 200) - T{100};
      for (T& value : all.b) value = static_cast<T>(random() % 200) - T{100};
      all.Multiply(threads, backwards);
      size_t at = 0;
      for (size_t row = 0; row < kCounts.size(); ++row) {
        double ab = 0;
        double aa = 0;
        double bb = 0;
        for (int64_t i = 0; i < kCounts[row]; ++i, ++at) {
          ab += static_cast<double>(all.a[at]) * static_cast<double>(all.b[at]);
          aa += static_cast<double>(all.a[at]) * static_cast<double>(all.a[at]);
          bb += static_cast<double>(all.b[at]) * static_cast<double>(all.b[at]);
        }
        EXPECT_EQ(all.products[row].ab, ab);
        EXPECT_EQ(all.products[row].aa, aa);
        EXPECT_EQ(all.products[row].bb, bb);
      }
    }
  }
}

TEST(DeviceAdasum, ProductsOfFloat32) { CheckWholeNumbers<float>(); }
TEST(DeviceAdasum, ProductsOfFloat64) { CheckWholeNumbers<double>(); }

// Float64 sums of float64 products: 1e8 squared leaves no room for 1 in
// float32.
TEST(DeviceAdasum, ProductsAreFormedInFloat64) {
  Vectors<float> all({3}, 64);
  all.a = {1e8f, 1.0f, -1e8f};
  all.b = {1e8f, 1.0f, 1e8f};
  all.Multiply(256, false);
  EXPECT_EQ(all.products[0].ab, 1.0);
  EXPECT_EQ(all.products[0].aa, 2e16 + 1.0);
}

// The order of sums does not depend on when a thread runs.
TEST(DeviceAdasum, ThreadsInAnyOrderGiveTheSameBits) {
  Vectors<float> forwards({5000, 40}, 512);
  Vectors<float> backwards({5000, 40}, 512);
  std::mt19937 random(6);
  for (size_t i = 0; i < forwards.a.size(); ++i) {
    forwards.a[i] = backwards.a[i] = static_cast<float>(random()) / 3e9f;
    forwards.b[i] = backwards.b[i] = static_cast<float>(random()) / 7e9f;
  }
  forwards.Multiply(kAdasumThreads, false);
  backwards.Multiply(kAdasumThreads, true);
  for (size_t row = 0; row < 2; ++row) {
    EXPECT_EQ(forwards.products[row].ab, backwards.products[row].ab);
    EXPECT_EQ(forwards.products[row].aa, backwards.products[row].aa);
    EXPECT_EQ(forwards.products[row].bb, backwards.products[row].bb);
  }
}

template <typename T>
void CheckCombination() {
  for (const int threads : {1, 32, 256}) {
    std::mt19937 random(7);
    Vectors<T> all(kCounts, 64);
    for (T& value : all.a) value = static_cast<T>(random()) / T{3e9};
    for (T& value : all.b) value = static_cast<T>(random()) / T{7e9};
    for (AdasumProducts& products : all.products) {
      products = {static_cast<double>(random() % 9), 3.0, 7.0};
    }
    all.Combine(threads, threads == 32);
    size_t at = 0;
    for (size_t row = 0; row < kCounts.size(); ++row) {
      const AdasumProducts& p = all.products[row];
      const double of_a = 1.0 - p.ab / (2.0 * p.aa);
      const double of_b = 1.0 - p.ab / (2.0 * p.bb);
      for (int64_t i = 0; i < kCounts[row]; ++i, ++at) {
        EXPECT_EQ(all.output[at],
                  static_cast<T>(of_a * static_cast<double>(all.a[at]) +
                                 of_b * static_cast<double>(all.b[at])));
      }
    }
  }
}

TEST(DeviceAdasum, CombinesFloat32) { CheckCombination<float>(); }
TEST(DeviceAdasum, CombinesFloat64) { CheckCombination<double>(); }

TEST(DeviceAdasum, CombinesInPlace) {
  Vectors<float> all({100, 3}, 64);
  for (AdasumRow& row : *all.rows()) row.output = const_cast<void*>(row.a);
  for (float& value : all.a) value = 6.0f;
  for (float& value : all.b) value = 2.0f;
  all.Multiply(256, false);
  all.Combine(256, false);
  EXPECT_EQ(all.a, std::vector<float>(103, 4.0f));
}

TEST(DeviceAdasum, ZerosAndNanAreAddedAsTheyAre) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  Vectors<double> all({1, 1, 1}, 64);
  all.a = {0.0, 3.0, nan};
  all.b = {5.0, 0.0, 2.0};
  all.Multiply(256, false);
  all.Combine(256, false);
  EXPECT_EQ(all.output[0], 5.0);
  EXPECT_EQ(all.output[1], 3.0);
  EXPECT_TRUE(std::isnan(all.output[2]));
}

// Both sides of a pair get the same.
TEST(DeviceAdasum, IncomingProductsAreAdded) {
  constexpr size_t kRows = 600;
  Vectors<float> all(std::vector<int64_t>(kRows, 0), 64);
  std::vector<AdasumProducts> incoming(kRows);
  for (size_t i = 0; i < kRows; ++i) {
    const auto value = static_cast<double>(i);
    all.products[i] = {value, 2 * value, 3 * value};
    incoming[i] = {1.0, 10.0, 100.0};
  }
  all.arguments()->incoming = incoming.data();
  all.Launch("tf_hvd_add_products", 3, 256, false);
  for (size_t i = 0; i < kRows; ++i) {
    const auto value = static_cast<double>(i);
    EXPECT_EQ(all.products[i].ab, value + 1.0);
    EXPECT_EQ(all.products[i].aa, 2 * value + 10.0);
    EXPECT_EQ(all.products[i].bb, 3 * value + 100.0);
  }
}

TEST(DeviceAdasum, TilesOfRowsOfMoreThan32BitsCount) {
  constexpr int64_t kHuge = (int64_t{1} << 40) + 5;
  const int64_t tiles = (kHuge + 63) / 64;
  const std::vector<AdasumRow> rows = {
      {nullptr, nullptr, nullptr, kHuge, tiles},
      {nullptr, nullptr, nullptr, 0, tiles},
      {nullptr, nullptr, nullptr, kHuge, 2 * tiles}};
  AdasumArguments arguments{};
  arguments.rows = rows.data();
  arguments.row_count = 3;
  arguments.tile = 64;
  const AdasumTile last_of_first = FindTile(arguments, tiles - 1);
  EXPECT_EQ(last_of_first.row, 0);
  EXPECT_EQ(last_of_first.begin, kHuge - kHuge % 64);
  EXPECT_EQ(last_of_first.end, kHuge);
  const AdasumTile first_of_last = FindTile(arguments, tiles);
  EXPECT_EQ(first_of_last.row, 2);
  EXPECT_EQ(first_of_last.begin, 0);
  EXPECT_EQ(first_of_last.end, 64);
}

}  // namespace
}  // namespace tf_hvd

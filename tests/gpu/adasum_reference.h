// Adasum by its definition (Maleki and others, "Scaling Distributed Training
// with Adaptive Summation", MLSys 2021), and numbers of which it is exact.
#ifndef TF_HVD_TESTS_GPU_ADASUM_REFERENCE_H_
#define TF_HVD_TESTS_GPU_ADASUM_REFERENCE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "compute/buffer_ops.h"

namespace tf_hvd {

// Of one pair, each sum and each product formed in float64.
template <typename T>
std::vector<T> AdasumOfTwo(const std::vector<T>& a, const std::vector<T>& b) {
  double ab = 0.0;
  double aa = 0.0;
  double bb = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    ab += static_cast<double>(a[i]) * static_cast<double>(b[i]);
    aa += static_cast<double>(a[i]) * static_cast<double>(a[i]);
    bb += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  const double of_a = aa > 0.0 ? 1.0 - ab / (2.0 * aa) : 1.0;
  const double of_b = bb > 0.0 ? 1.0 - ab / (2.0 * bb) : 1.0;
  std::vector<T> result(a.size());
  for (size_t i = 0; i < a.size(); ++i) {
    result[i] = static_cast<T>(of_a * static_cast<double>(a[i]) +
                               of_b * static_cast<double>(b[i]));
  }
  return result;
}

// Pairs in a tree over the places of the ranks; those beyond the last power of
// two are first combined with the first ones.
template <typename T>
std::vector<T> AdasumOfAll(std::vector<std::vector<T>> vectors) {
  size_t tree = 1;
  while (tree * 2 <= vectors.size()) tree *= 2;
  for (size_t extra = tree; extra < vectors.size(); ++extra) {
    vectors[extra - tree] = AdasumOfTwo(vectors[extra - tree], vectors[extra]);
  }
  for (size_t step = 1; step < tree; step *= 2) {
    for (size_t i = 0; i < tree; i += 2 * step) {
      vectors[i] = AdasumOfTwo(vectors[i], vectors[i + step]);
    }
  }
  return vectors[0];
}

// The bytes of the result. A null input stands for zeros.
template <typename Accumulator>
std::vector<char> AdasumBytesIn(const ReduceOptions& options,
                                const std::vector<const void*>& inputs,
                                size_t count) {
  std::vector<std::vector<Accumulator>> vectors;
  for (const void* input : inputs) {
    vectors.emplace_back(count);
    LoadAccumulator(options.dtype, vectors.back().data(), input,
                    static_cast<int64_t>(count), options.prescale);
  }
  const auto sum = AdasumOfAll(std::move(vectors));
  std::vector<char> result(count * SizeOf(options.dtype));
  StoreAccumulator(options.dtype, result.data(), sum.data(),
                   static_cast<int64_t>(count), options.postscale);
  return result;
}

inline std::vector<char> AdasumBytes(const ReduceOptions& options,
                                     const std::vector<const void*>& inputs,
                                     size_t count) {
  return options.dtype == DType::kFloat64
             ? AdasumBytesIn<double>(options, inputs, count)
             : AdasumBytesIn<float>(options, inputs, count);
}

// Numbers of which all scalar products are sums without rounding, in whatever
// order: vectors that meet first in the tree are multiples of each other by a
// power of two, those that meet next have different elements, and only those
// that meet in the last level are neither. `base`: small whole numbers, the
// same on all ranks.
inline std::vector<char> AdasumNumbers(DType dtype, size_t place, size_t ranks,
                                       const std::vector<int>& base,
                                       std::mt19937_64* random) {
  size_t tree = 1;
  while (tree * 2 <= ranks) tree *= 2;
  // Of what has met first; and how many of these meet before the last level.
  const bool lent = ranks > tree;
  const size_t met = lent ? place % tree : place / 2;
  const size_t shares = std::max<size_t>(1, lent ? tree / 2 : tree / 4);
  // The last level has two sides.
  const size_t side = place % tree < tree / 2 ? 0 : 1;
  constexpr double kMultiples[] = {1.0, 2.0, 0.5, -1.0};
  const double multiple = kMultiples[(*random)() % 4];
  std::vector<double> numbers(base.size());
  for (size_t i = 0; i < base.size(); ++i) {
    const int value = base[(i + side) % base.size()];
    numbers[i] = i % shares == met % shares ? multiple * value : 0.0;
  }
  const std::vector<float> floats(numbers.begin(), numbers.end());
  const void* const values = dtype == DType::kFloat64
                                 ? static_cast<const void*>(numbers.data())
                                 : floats.data();
  std::vector<char> bytes(base.size() * SizeOf(dtype));
  StoreAccumulator(dtype, bytes.data(), values,
                   static_cast<int64_t>(base.size()), 1.0);
  return bytes;
}

}  // namespace tf_hvd

#endif  // TF_HVD_TESTS_GPU_ADASUM_REFERENCE_H_
